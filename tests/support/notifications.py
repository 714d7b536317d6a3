"""Replace what an outbox's notifier calls, and count how often a worker is to be notified."""

from __future__ import annotations

from collections.abc import Callable

from outbox.core import Outbox


def replace_wake(box: Outbox, wake: Callable[[], None], *, inline: bool = False) -> None:
    """Have the outbox's notifier call `wake` from now on, in the background or inline."""
    box.notifier._wake, box.notifier._prepare, box.notifier._inline = wake, None, inline


class CountedNotifications:
    """Counts how often a worker is to be notified, at the moment of the request."""

    def __init__(self, box: Outbox) -> None:
        self.times = 0
        replace_wake(box, lambda: None)
        self._notify = box.notifier.notify
        setattr(box.notifier, "notify", self._count)  # noqa: B010  (a method can't be assigned to)

    def _count(self) -> None:
        self.times += 1
        self._notify()
