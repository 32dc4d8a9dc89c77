"""Softmax attention: exact forms, and the pipeline of kernels."""
