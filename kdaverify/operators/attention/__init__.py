"""Softmax attention: problems, laws, words, and how a function of it is called."""
