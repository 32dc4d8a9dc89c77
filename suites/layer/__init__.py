"""Suites of whole layers."""
