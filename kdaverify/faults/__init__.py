"""Real bugs of this kernel family as small patches: what a suite is worth is what it finds."""
