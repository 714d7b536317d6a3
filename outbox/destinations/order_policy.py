"""A destination's rules for order: whether it keeps the order of a key, and whether a failed event blocks its key.

Both are optional attributes of a destination, `ordered` and `on_failed`. The delivery code asks for them here
(`delivery/ordering.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from outbox.destinations.protocol import Destination
from outbox.errors import RegistrationError

# "block": later events of the key wait until an operator retries, skips or deletes the failed one. "skip": they go on.
OnFailed = Literal["block", "skip"]


class OrderedDestination(Protocol):
    """The part of Destination that the rules for order need, besides `on_failed`."""

    @property
    def name(self) -> str: ...
    @property
    def events(self) -> Sequence[str]: ...


def is_ordered(destination: Destination) -> bool:
    """Return whether the destination gets the events of an ordering key in order. That is the default."""
    return getattr(destination, "ordered", True) is not False


def skips_failed(destination: OrderedDestination) -> bool:
    """Return whether later events of a key go on after an event that has failed for good."""
    return getattr(destination, "on_failed", "block") == "skip"


def check_order_policy(name: object, ordered: object, on_failed: object) -> None:
    """Raise RegistrationError unless both have a valid value. `name` is the destination's, for the message."""
    if not isinstance(ordered, bool):
        raise RegistrationError(f"`ordered` of the destination {name!r} must be True or False, not {ordered!r}.")
    if on_failed not in ("block", "skip"):
        raise RegistrationError(
            f'`on_failed` of the destination {name!r} must be "block" or "skip", not {on_failed!r}.'
        )
