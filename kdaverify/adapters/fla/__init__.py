"""flash-linear-attention: its Triton kernels for CUDA and for Ascend,
native where the device is, interpreted elsewhere.
"""
