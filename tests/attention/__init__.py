"""Tests of softmax attention."""
