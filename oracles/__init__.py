"""Exact values of Kimi Delta Attention with proven errors. No kernel, no tolerance."""
