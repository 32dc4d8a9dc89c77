"""What is decided: verdicts, their records, and the decision they lead to."""
