"""Tolerances of softmax attention: contracts, reference ensemble, and the rule of each output."""
