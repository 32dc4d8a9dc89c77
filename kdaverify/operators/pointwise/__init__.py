"""Operations beside the recurrence, element by element or row by row:
gate activations, the sigmoid of beta, l2norm.
"""
