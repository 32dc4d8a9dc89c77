"""Real bugs of this kernel family, re-created as small patches of the embedded kernel: what a suite
is worth is what it finds of them.
"""
