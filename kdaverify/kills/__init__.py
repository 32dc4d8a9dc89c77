"""The kill matrix: which of the known faults the suites find, held against legal kernels on the same inputs."""
