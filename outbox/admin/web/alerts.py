"""Find what an operator should look at, for the top of the overview. Each alert says what is wrong and what to do."""

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
    """What is wrong, and what to do. `level` is BAD or WARN; it is also the CSS class."""

    level: str
    title: str
    text: str
    # A command that helps. It is shown after the text.
    command: str | None = None
    # Query parameters of the link to the list of these events. If it is empty, there is no link.
    events: dict[str, str] = field(default_factory=dict)


def find_alerts(view: Overview) -> list[Alert]:
    """Return the alerts, the worst first."""
    alerts = [*_processes(view), *_destinations(view), *_late_events(view), *_different_destinations(view)]
    return sorted(alerts, key=lambda alert: alert.level != BAD)


def _processes(view: Overview) -> Iterator[Alert]:
    unfinished = view.backlog.unfinished
    if not view.workers:
        text = "Events are not delivered until one runs." if unfinished.number else "No events are waiting now."
        yield Alert(
            BAD if unfinished.number else WARN,
            "No worker is running",
            f"{text} Start one or more:",
            command="outbox worker your.module",
            events={"status": "pending"} if unfinished.number else {},
        )
    if not view.schedulers:
        yield Alert(
            WARN,
            "No scheduler is running",
            "Due retries, and events whose worker died, wait until a worker polls for them. Old events are not "
            "deleted. Start one:",
            command="outbox scheduler",
        )
    if view.without_broker:
        yield Alert(
            BAD,
            f"{len(view.without_broker)} of {len(view.workers)} workers can't reach their broker (Redis)",
            "They receive no wake-ups and no sweeps. Each of them polls for due events every OUTBOX_SWEEP_SECONDS. "
            f"Last error: {view.without_broker[0].details['broker_error']}",
        )


def _destinations(view: Overview) -> Iterator[Alert]:
    for name, breaker in view.breakers.items():
        if breaker["open"]:
            yield Alert(
                BAD,
                f"{name} is unavailable",
                "Its circuit breaker is open: workers try it with one event from time to time, and its other events "
                f"wait without failing. Last error: {breaker['error']}",
                events={"destination": name},
            )
    for name in view.absent if view.workers else ():
        yield Alert(
            WARN,
            f"No running worker has the destination {name}",
            "Its events wait. Start a worker with the module that registers it or, if it was removed, retire it:",
            command=f"outbox retire {name}",
            events={"destination": name},
        )


def _late_events(view: Overview) -> Iterator[Alert]:
    since = view.backlog.oldest_due_at
    if since is not None and view.workers and view.now - since > LATE:
        yield Alert(
            WARN,
            f"Events have been due for {format_duration(view.now - since)}",
            "The workers are too slow, or wait for a slow destination: see their log, or start more workers.",
            events={"status": "pending"},
        )
    if view.backlog.expired.number:
        yield Alert(
            WARN,
            f"{view.backlog.expired} {'event' if view.backlog.expired.number == 1 else 'events'} with an expired lease",
            "Their worker stopped before it finished them. After the next sweep, another worker claims them, one at a "
            "time.",
            events={"status": "sending"},
        )


def _different_destinations(view: Overview) -> Iterator[Alert]:
    destination_sets = {
        frozenset(each.details.get("destinations", {})) for each in view.alive if each.kind in (WORKER, UP)
    }
    if len(destination_sets) > 1:
        differing = sorted(frozenset.union(*destination_sets) - frozenset.intersection(*destination_sets))
        yield Alert(
            WARN,
            "Workers have different destinations",
            f"Not all of them have {', '.join(differing)}. Start all workers with the same modules.",
        )
