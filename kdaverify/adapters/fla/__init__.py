"""flash-linear-attention: Triton kernels for CUDA and Ascend, native or interpreted."""
