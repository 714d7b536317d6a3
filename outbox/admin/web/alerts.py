"""What is wrong, and what to do about it: the overview's first lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from outbox.admin.durations import format_duration
from outbox.admin.overview import Overview
from outbox.storage.status import LATE
from outbox.telemetry.process_reports import UP, WORKER

BAD, WARN = "bad", "warn"


@dataclass(frozen=True, slots=True)
class Alert:
    level: str
    title: str
    text: str
    command: str | None = None
    # Where the events in question are listed.
    events: dict[str, str] = field(default_factory=dict)


def alerts(view: Overview) -> list[Alert]:
    """The worst first."""
    return sorted(_alerts(view), key=lambda alert: alert.level != BAD)


def _alerts(view: Overview) -> Iterator[Alert]:
    waiting = view.backlog.unfinished
    if not view.workers:
        text = "Nothing is delivered until one runs." if waiting.number else "Nothing waits at the moment."
        yield Alert(
            BAD if waiting.number else WARN,
            "No worker is running",
            f"{text} Start one, or several:",
            command="outbox worker your.module",
            events={"status": "pending"} if waiting.number else {},
        )
    if not view.schedulers:
        yield Alert(
            WARN,
            "No scheduler is running",
            "Retries that come due, and events whose worker died, wait until a worker looks for them by itself; old "
            "events are not deleted. Start one:",
            command="outbox scheduler",
        )
    if view.without_broker:
        yield Alert(
            BAD,
            f"{len(view.without_broker)} of {len(view.workers)} workers can't reach their broker (Redis)",
            "No wake-up and no sweep reaches them. They look for due events by themselves, every OUTBOX_SWEEP_SECONDS. "
            f"Last error: {view.without_broker[0].details['broker_error']}",
        )
    for name, breaker in view.breakers.items():
        if breaker["open"]:
            yield Alert(
                BAD,
                f"{name} can't be reached",
                f"It is left alone, and tried with one event from time to time; nothing fails meanwhile. "
                f"Last error: {breaker['error']}",
                events={"destination": name},
            )
    for name in view.absent if view.workers else ():
        yield Alert(
            WARN,
            f"No running worker has the destination {name}",
            "Events that it wants wait for it. Start a worker with the module that registers it or, if it is gone for "
            "good, say so:",
            command=f"outbox retire {name}",
            events={"destination": name},
        )
    yield from _late(view)
    yield from _disagreement(view)


def _late(view: Overview) -> Iterator[Alert]:
    since = view.backlog.oldest_due_at
    if since is not None and view.workers and view.now - since > LATE:
        yield Alert(
            WARN,
            f"Events have been due for {format_duration(view.now - since)}",
            "The workers don't keep up, or are held up by a slow destination: see their log, or start more.",
            events={"status": "pending"},
        )
    if view.backlog.expired.number:
        yield Alert(
            WARN,
            f"{view.backlog.expired} of a worker that fell silent",
            "Their leases have run out. The next sweep gives them to another worker, one at a time.",
            events={"status": "sending"},
        )


def _disagreement(view: Overview) -> Iterator[Alert]:
    sets = {frozenset(each.details.get("destinations", {})) for each in view.alive if each.kind in (WORKER, UP)}
    if len(sets) > 1:
        differing = sorted(frozenset.union(*sets) - frozenset.intersection(*sets))
        yield Alert(
            WARN,
            "Workers disagree about the destinations",
            f"Not all of them know {', '.join(differing)}. Start all workers with the same modules.",
        )
