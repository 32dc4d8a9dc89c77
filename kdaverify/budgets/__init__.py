"""Tolerances: contracts, ensembles of conforming kernels, and what their errors allow."""
