<<<<<<< HEAD
"""Softmax attention: exact forms, and the pipeline of kernels."""
=======
"""Softmax attention in exact arithmetic: segments, calls, float64 with proven radius, splits."""
>>>>>>> attcore
