"""The page of a run: one self-contained file that opens offline,
and its summary for a pull request.
"""
