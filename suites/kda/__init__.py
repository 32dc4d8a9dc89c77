"""Suites of KDA. A package, so that other folders may have tests of the same names."""
