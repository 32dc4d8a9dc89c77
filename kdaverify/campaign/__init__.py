"""Many cases, many workers: drawn campaigns, on this machine or on a cluster."""
