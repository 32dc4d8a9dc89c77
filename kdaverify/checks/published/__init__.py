"""Published standards of others, applied to an output: rules restated from their sources, beside
our verdict and never part of it.
"""
