"""What is shown: the last page of a session, its JSON, its live progress."""
