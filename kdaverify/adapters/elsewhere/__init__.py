"""Kernels in another Python interpreter, with packages of its own."""
