from __future__ import annotations


class InvalidMetadata(ValueError):
    """A record that cannot follow those before it: the log is damaged, or read from the wrong place."""
