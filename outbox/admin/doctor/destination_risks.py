"""Check for destinations that an attacker in the network could read or change."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.admin.doctor.check import Context, Finding, ok, warning
from outbox.destinations.description import describe_destination

ADVICE = "Use an https:// URL, and a secret from `outbox.webhooks.new_secret()`."


def exposed(context: Context) -> Iterator[Finding]:
    """Warn about the risks of the destinations that are registered here, or that a worker has reported."""
    known = [(name, describe_destination(each)) for name, each in context.box.registry.destinations.items()]
    for process in context.overview.workers:
        known += process.details.get("destinations", {}).items()
    found = sorted({(name, str(risk)) for name, described in known for risk in described.get("risks", ())})
    for name, risk in found:
        yield warning(f"{name}: {risk}.", ADVICE)
    if not found:
        yield ok("No known destination sends secrets or unsigned events over http.")
