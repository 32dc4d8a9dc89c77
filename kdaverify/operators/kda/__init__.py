"""Kimi Delta Attention."""
