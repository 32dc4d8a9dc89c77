"""Which mailboxes of a design may be narrow: every assignment of formats, run both ways."""
