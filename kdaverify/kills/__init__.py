"""The kill matrix: which known faults the suites find, beside conforming kernels."""
