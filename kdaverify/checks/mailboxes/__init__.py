"""Which mailboxes of a design may be narrow: every assignment of formats is run, there and back,
and compared with tolerances.
"""
