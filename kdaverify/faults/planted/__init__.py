"""Faults of our own, each shown by one kind of question alone, which keeps that kind.

The bugs beside this folder are real ones of public kernels. These fill the gaps between them: sizes
that ship, memory behind a tail, races of large grids, kernels in a process of their own. `python -m
benchmarks.question_kinds` judges all of them with and without the questions of their kind.
"""
