"""The outcome of one event at one destination: `Delivered | Retry | Unavailable | Failed`.

A destination returns an outcome for each event; `outbox.delivery.retry` decides from it what happens next.
`Unavailable` is also an exception that handlers raise, and is defined in `outbox.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from outbox.errors import NewerEvent, Unavailable, UnreadableEvent, as_text


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination has received the event."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The destination did not accept the event. This costs an attempt.

    The next attempt is at `not_before` (a time, or a wait from now), or after the backoff if that is None. `exception`
    is what hooks of `outbox.on_failure` get; if `error` is an exception, it is that by default.
    """

    error: str
    not_before: datetime | timedelta | None = None
    exception: BaseException | None = field(default=None, kw_only=True, repr=False, compare=False)
    # The status of the HTTP response, if there was one, for the history of attempts.
    http_status: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _set_error(self, self.error)


@dataclass(frozen=True, slots=True)
class Failed:
    """Trying again can't help: the event has failed at this destination. `exception` is as for Retry."""

    error: str
    exception: BaseException | None = field(default=None, kw_only=True, repr=False, compare=False)
    http_status: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _set_error(self, self.error)


def _set_error(outcome: Retry | Failed, error: object) -> None:
    if isinstance(error, BaseException) and outcome.exception is None:
        object.__setattr__(outcome, "exception", error)
    object.__setattr__(outcome, "error", as_text(error))


Outcome = Delivered | Retry | Unavailable | Failed


def exception_of(outcome: Outcome) -> BaseException | None:
    """Return the exception behind an outcome. A handler that raises Unavailable is its own."""
    if isinstance(outcome, Unavailable):
        return outcome.exception if outcome.exception is not None or outcome.__traceback__ is None else outcome
    return None if isinstance(outcome, Delivered) else outcome.exception


def was_not_called(outcome: Outcome) -> bool:
    """Return whether the outcome says that the handler was not called, because its event could not be read."""
    return isinstance(outcome, NewerEvent) or (
        isinstance(outcome, Retry) and isinstance(outcome.exception, UnreadableEvent)
    )


# One instance for all events: making one takes about ten times as long as returning this.
DELIVERED_OUTCOME = Delivered()
