"""The kill matrix: which of the known faults the suites find,
held against conforming kernels on the same inputs.
"""
