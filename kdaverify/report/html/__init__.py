"""The page of a run: one file that opens offline; its summary for a pull request."""
