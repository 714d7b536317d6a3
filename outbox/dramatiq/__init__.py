"""Everything that knows Dramatiq. Importing it has no effects: `jobs` and the commands declare the actors."""

from __future__ import annotations

from outbox.dramatiq.destination import ActorDestination

__all__ = ["ActorDestination"]
