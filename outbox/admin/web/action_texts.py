"""What can be done by hand, in the words that people are told before and afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outbox.core import Outbox
from outbox.operations import actions
from outbox.operations.actions import Action
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING


@dataclass(frozen=True, slots=True)
class Deed:
    name: str
    verb: str
    # The events that it is for, and what they are afterwards.
    which: str
    done: str
    # What will happen, a sentence each.
    means: tuple[str, ...]
    states: tuple[str, ...]
    make: Callable[[Outbox, str, str | None], Action]
    danger: bool = False


DEEDS = {
    deed.name: deed
    for deed in (
        Deed(
            "retry",
            "Retry",
            "are failed",
            "put back",
            (
                "Each becomes due at once, and its attempts are counted from 0.",
                "Destinations that have it already don't get it again.",
                "Mend the cause first, or it fails again.",
            ),
            (FAILED,),
            lambda _box, _reason, _to: actions.RETRY,
        ),
        Deed(
            "replay",
            "Replay",
            "are delivered",
            "put back",
            (
                "Each is delivered again, with the same id and the same content.",
                "A consumer that remembers ids skips it; for one that doesn't, it happens once more.",
            ),
            (DELIVERED,),
            lambda box, _reason, to: actions.replaying(box, to),
        ),
        Deed(
            "fail",
            "Give up",
            "are waiting",
            "given up",
            (
                "Each ends as failed, and is not tried again unless somebody retries it.",
                "One that is being delivered right now is left alone.",
            ),
            (PENDING, SENDING),
            lambda _box, reason, _to: actions.failing(reason),
            danger=True,
        ),
        Deed(
            "delete",
            "Delete",
            "have ended",
            "deleted",
            (
                "Each is gone for good, with its content. This can't be undone.",
                "Its idempotency key is free again: the same event could be emitted a second time.",
            ),
            (DELIVERED, FAILED),
            lambda _box, _reason, _to: actions.DELETE,
            danger=True,
        ),
    )
}


def deeds_for(status: str | None) -> list[Deed]:
    """What may be done to events in this state; to any, if it is not known."""
    return [deed for deed in DEEDS.values() if status is None or status in deed.states]


def told(deed: Deed, number: int) -> str:
    """What has happened."""
    if number == 0:
        return f"Nothing was {deed.done}: only events that {deed.which} can be."
    return f"{events(number)} {'was' if number == 1 else 'were'} {deed.done}."


def events(number: int) -> str:
    return f"{number:,} event{'' if number == 1 else 's'}"
