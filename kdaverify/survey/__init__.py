"""The state of the kernels: every implementation that can be judged, side by side."""
