"""Simple mistakes of a KDA kernel, made of two tables: the tensors of the chunk form, and what a
tensor can be off by.
"""
