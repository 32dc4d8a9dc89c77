"""What is wrong with a kernel: its own outputs beside those of known faults on the same input."""
