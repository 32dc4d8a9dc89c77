"""Kernels of another place: the calls of the suites as files, and the outputs that come back."""
