"""Laws: relations between runs of one implementation, each in a file of its own (math.md 7)."""
