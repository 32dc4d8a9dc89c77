"""What is allowed: contracts, the family of legal kernels under each, and the budget their errors make."""
