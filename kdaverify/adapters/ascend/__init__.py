"""Kernels for Ascend NPUs: flashserve's AscendC operators, shared objects of PTO sources."""
