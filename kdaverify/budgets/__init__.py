"""Tolerances: contracts, the ensemble of conforming kernels under each,
and the tolerance their errors make.
"""
