"""The gated RMSNorm: problems, laws, words, and how a function of it is called."""
