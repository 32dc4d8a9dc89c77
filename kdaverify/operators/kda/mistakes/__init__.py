"""Simple mistakes of a KDA kernel, of two tables: chunk tensors, and what each can be off by."""
