"""The operators under test, a folder each: all that others leave to the operator."""
