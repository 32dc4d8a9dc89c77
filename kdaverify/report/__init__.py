"""What is shown: the terminal summary of a session, its JSON, its live progress."""
