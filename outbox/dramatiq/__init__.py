"""Everything that knows Dramatiq."""
