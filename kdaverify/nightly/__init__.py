"""Night after night: the same and fresh cases, what changed, and what fails sometimes."""
