"""Softmax attention in exact arithmetic: segments, calls, float64 with proven radius, splits."""
