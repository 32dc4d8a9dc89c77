"""Kernels for Ascend NPUs: flashserve's AscendC operators,
and shared objects compiled from PTO sources.
"""
