"""Assert what was emitted and sent. A failure shows the most similar events, and how they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outbox.destinations.event_filter import Pattern
from outbox.storage.models import EVENT, JOB, OutboxEvent
from outbox.testing.captured import captured_now
from outbox.testing.match import Difference, Expected

# How many events a failure shows, and how many differences of each.
NEAREST_SHOWN, DIFFERENCES_SHOWN = 3, 8


def assert_emitted(
    event_type: str,
    *,
    aggregate: tuple[str, object] | None = None,
    payload: Any = None,
    headers: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    correlation_id: str | None = None,
    tenant_id: str | None = None,
    ordering_key: str | None = None,
    count: int | None = None,
    within: Iterable[OutboxEvent] | None = None,
) -> OutboxEvent:
    """Fail unless an event like this was emitted; return the first of those that match.

    - `event_type`: the type of the event.
    - `aggregate`: its aggregate's type and id, such as ("Order", 7).
    - `payload`, `headers`: what they must contain. They may have more keys. Lists must be of the same length.
    - `idempotency_key`, `correlation_id`, `tenant_id`, `ordering_key`: as they were stored.
    - `count`: how many events must match. None: at least one.
    - `within`: what `capture` holds. None: the innermost block of `capture`, or everything in the table.
    """
    expected = Expected(
        event_type,
        None if aggregate is None else (aggregate[0], str(aggregate[1])),
        payload,
        headers,
        {
            "idempotency_key": idempotency_key,
            "correlation_id": correlation_id,
            "tenant_id": tenant_id,
            "ordering_key": ordering_key,
        },
    )
    return _assert_found(expected, _rows(within, EVENT), count, "emitted")


def assert_sent(
    actor: object,
    *,
    args: Iterable[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    count: int | None = None,
    within: Iterable[OutboxEvent] | None = None,
) -> OutboxEvent:
    """Fail unless a job like this was sent; return the first of those that match.

    - `actor`: the actor, or its name.
    - `args`: its positional arguments, all of them.
    - `kwargs`, `options`: what its keyword arguments, and the options of the message, must contain.
    - `count`, `within`: as for `assert_emitted`.
    """
    message = {"args": None if args is None else list(args), "kwargs": kwargs, "options": options}
    given = {name: value for name, value in message.items() if value is not None}
    expected = Expected(_name_of(actor), payload=given)
    return _assert_found(expected, _rows(within, JOB), count, "sent")


def assert_nothing_emitted(event_type: str = "*", *, within: Iterable[OutboxEvent] | None = None) -> None:
    """Fail if an event was emitted, or a job was sent.

    - `event_type`: "order.placed", or a pattern such as "order.*", for these events only.
    - `within`: as for `assert_emitted`.
    """
    pattern = Pattern(event_type)
    found = [row for row in _rows(within, EVENT, JOB) if pattern.matches(row.event_type)]
    if found:
        listed = "\n".join(f"  {_described(row)}  payload={row.payload!r}" for row in found)
        raise AssertionError(f"Nothing of {event_type!r} was expected, and this was stored:\n{listed}")


def _name_of(actor: object) -> str:
    actor = getattr(actor, "__actor__", actor)  # a class-based actor
    return actor if isinstance(actor, str) else str(actor.actor_name)  # type: ignore[attr-defined]  # an actor


def _rows(within: Iterable[OutboxEvent] | None, *kinds: str) -> list[OutboxEvent]:
    rows = captured_now() if within is None else within
    return [row for row in rows if row.kind in kinds]


def _assert_found(expected: Expected, rows: list[OutboxEvent], count: int | None, verb: str) -> OutboxEvent:
    if count is not None and count < 1:
        raise ValueError("count must be at least 1; for none, use assert_nothing_emitted.")
    compared = [(row, expected.differences(row)) for row in rows]
    found = [row for row, differences in compared if not differences]
    if found and count in (None, len(found)):
        return found[0]
    many = "" if count is None else f" ({len(found)} instead of {count})"
    raise AssertionError(f"This was not {verb}{many}:\n  {expected}\n{_nearest(compared, verb)}")


def _nearest(compared: list[tuple[OutboxEvent, list[Difference]]], verb: str) -> str:
    """Return the events that are most similar to the expected one, and how they differ."""
    if not compared:
        return f"Nothing was {verb} at all. What was rolled back with a transaction or a savepoint does not count."
    nearest = sorted(compared, key=lambda each: sum(difference.weight for difference in each[1]))
    lines = [f"{len(compared)} {'was' if len(compared) == 1 else 'were'} {verb}; nearest:"]
    for row, differences in nearest[:NEAREST_SHOWN]:
        lines.append(f"  {_described(row)}{'' if differences else '  (matches)'}")
        lines += [f"      {difference}" for difference in differences[:DIFFERENCES_SHOWN]]
        if len(differences) > DIFFERENCES_SHOWN:
            lines.append(f"      and {len(differences) - DIFFERENCES_SHOWN} more differences")
    return "\n".join(lines)


def _described(row: OutboxEvent) -> str:
    return row.event_type if row.kind == JOB else f"{row.event_type}  {row.aggregate_type}:{row.aggregate_id}"
