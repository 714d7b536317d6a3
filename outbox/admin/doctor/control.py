"""Check what operators have paused: events wait there until they are resumed."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.admin.controls_view import describe_pause, shown_name
from outbox.admin.doctor.check import Context, Finding, note, ok, warning
from outbox.destinations.controls import EVERYTHING


def paused(context: Context) -> Iterator[Finding]:
    """Check that nothing has been paused for long: an operator may have forgotten it."""
    overview = context.overview
    pauses = {name: pause for name, pause in overview.controls.pauses.items() if pause.is_active(overview.now)}
    for name, pause in sorted(pauses.items()):
        is_long = pause.until is None and pause.seconds(overview.now) >= context.thresholds.paused_seconds
        what = f"{shown_name(name)} is {describe_pause(pause, overview.now)}"
        yield (warning if is_long else note)(
            f"{what[0].upper()}{what[1:]}. Events wait, and don't fail for it.",
            f"`outbox resume {'--all' if name == EVERYTHING else name}` ends it.",
            brief=what,
            page="control",
        )
    if not pauses:
        yield ok("Nothing is paused.")
