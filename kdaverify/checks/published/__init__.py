"""What the published standards of others say of an output: rules restated from their sources, beside our verdict and never part of it."""
