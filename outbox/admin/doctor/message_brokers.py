"""Check that the message brokers among the destinations can be used from here."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.admin.doctor.check import Context, Finding, ok, problem
from outbox.buses.bus import Bus
from outbox.errors import as_sentence, describe


def reachable(context: Context) -> Iterator[Finding]:
    """Connect to each message broker that is registered here; its password and rights are checked by that, too."""
    buses: list[Bus[object]] = [each for each in context.box.registry.destinations.values() if isinstance(each, Bus)]
    if not buses:
        yield ok("No message broker is registered here.")
    for bus in buses:
        try:
            bus.check()
        except Exception as error:
            yield problem(
                f"{bus.name}: the {type(bus).__name__} can't be used: {as_sentence(describe(error))} Its events "
                "wait, and lose no attempt.",
                "Start the broker, create what is missing there, or correct the parameters of the destination.",
            )
        else:
            yield ok(f"{bus.name}: the {type(bus).__name__} can be reached.")
        finally:
            bus.close()
