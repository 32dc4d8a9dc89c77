"""What is raised where a record cannot be used."""

from __future__ import annotations


class RecordError(ValueError):
    """A record that cannot be read or written;
    the message names the file, the line and what to do.
    """
