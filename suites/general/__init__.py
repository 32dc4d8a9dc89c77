"""Suites of operators that have none of their own. A package, so that other folders may have tests
of the same names.
"""
