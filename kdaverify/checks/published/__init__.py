"""Published standards of others, applied to an output beside our verdict."""
