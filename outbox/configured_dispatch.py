"""Make the notifier that OUTBOX_DISPATCH asks for: it decides what follows a commit.

- `inline`: the thread that emitted delivers.
- `off`: nothing. The next sweep finds the event.
- any other name: an entry point in the group `outbox.dispatch` notifies a worker. `dramatiq` is the one that comes with
  the package; it is loaded in this way because this module must not import a layer above it.
"""

from __future__ import annotations

from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol
from uuid import UUID

from outbox.delivery import deliver
from outbox.delivery.context import DeliveryContext
from outbox.errors import SettingsError
from outbox.notify.notifier import Notifier
from outbox.settings import INLINE, OFF, Settings

# True while a thread delivers inline: a handler that emits an event must not start a second, nested delivery.
_delivering_inline: ContextVar[bool] = ContextVar("outbox_delivering_inline", default=False)


class OutboxOfNotifier(Protocol):
    """What a notifier needs of an Outbox. A plug-in is called with the Outbox itself."""

    @property
    def settings(self) -> Settings: ...

    @property
    def delivery(self) -> DeliveryContext: ...


def make_notifier(dispatch: str, box: OutboxOfNotifier) -> Notifier:
    """Return the notifier for this value of OUTBOX_DISPATCH. It uses the Outbox after a commit, not before."""
    if dispatch == OFF:
        return Notifier(None)
    if dispatch == INLINE:
        return Notifier(lambda: deliver_inline(box.delivery, box.settings.batch_size), inline=True)
    known = {point.name: point for point in entry_points(group="outbox.dispatch")}
    if dispatch not in known:
        choices = ", ".join(sorted({INLINE, OFF, *known}))
        raise SettingsError(f"OUTBOX_DISPATCH must be one of {choices}, not {dispatch!r}.")
    plug_in = known[dispatch]
    return Notifier(lambda: plug_in.load()(box), prepare=lambda: _prepare(plug_in, box))


def _prepare(plug_in: EntryPoint, box: OutboxOfNotifier) -> None:
    """Import the plug-in and all that it needs. The notifier calls this at the first emit."""
    notify = plug_in.load()
    if hasattr(notify, "prepare"):
        notify.prepare(box)


def deliver_inline(context: DeliveryContext, batch_size: int) -> None:
    """Deliver all due events in the thread that emitted, including events that handlers emit meanwhile."""
    if _delivering_inline.get():
        return
    token = _delivering_inline.set(True)
    seen: set[UUID] = set()
    try:
        while (batch := deliver.deliver_batch(context, batch_size)) is not None:
            ids = {event.id for event in batch.events}
            if ids <= seen and not batch.has_released:
                break  # every event was tried already and is due again: the emitter must not wait for its retries
            seen |= ids
    finally:
        _delivering_inline.reset(token)
