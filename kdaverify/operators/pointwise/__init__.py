"""Operations beside the recurrence, by element or row: gates, sigmoid of beta, l2norm."""
