"""Night after night: the same cases and fresh ones,
what changed since, and what only sometimes fails.
"""
