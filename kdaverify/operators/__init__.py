"""The operators under test, a folder each:
everything that the rest of the package does not know of them.
"""
