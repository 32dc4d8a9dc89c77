"""Many cases, many workers: random cases, on this machine or on a cluster."""
