"""Read what the page of one destination shows: its state, the waiting events, and its latest failed attempts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outbox.admin.controls_view import describe_controls
from outbox.admin.history import DESTINATION, History, Range, Scope, read_history
from outbox.admin.overview import count_waiting_at
from outbox.admin.processes import breakers, processes
from outbox.destinations.controls import Controls, read_controls
from outbox.destinations.recorded_destinations import RecordedDestination, read_recorded
from outbox.operations.count import Count
from outbox.storage.attempts import failed_attempts_at
from outbox.storage.dialect import Dialect
from outbox.storage.operator_models import Attempt, Process
from outbox.telemetry.process_reports import UP, WORKER

# How many of the latest failed attempts are listed.
LISTED_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class DestinationView:
    """One destination. `recorded` is None if no worker has recorded it: its name may be mistyped, or that of a broker.

    `breaker` is None while the circuit breaker is closed. `control` says in words what an operator has decided.
    """

    name: str
    now: datetime
    recorded: RecordedDestination | None
    kind: str
    workers: int
    breaker: dict[str, Any] | None
    controls: Controls
    control: str
    waiting: Count
    attempts: list[Attempt]
    history: History

    @property
    def is_known(self) -> bool:
        return self.recorded is not None or bool(self.workers) or bool(self.attempts) or not self.history.is_empty

    @property
    def is_paused(self) -> bool:
        pause = self.controls.pauses.get(self.name)
        return pause is not None and pause.is_active(self.now)

    @property
    def is_throttled(self) -> bool:
        throttle = self.controls.throttles.get(self.name)
        return throttle is not None and throttle.is_active(self.now)


def read_destination(dialect: Dialect, name: str, over: Range) -> DestinationView:
    """Return what is known about a destination."""
    with dialect.connection():
        now = dialect.now()
        reported = processes(dialect)
        owners = [each for each in reported if _has(each, name)]
        controls, _ = read_controls(dialect)
        return DestinationView(
            name=name,
            now=now,
            recorded=read_recorded(dialect)[1].get(name),
            kind=next((str(each.details["destinations"][name].get("kind", "")) for each in owners), ""),
            workers=len(owners),
            breaker=breakers(reported, now).get(name),
            controls=controls,
            control=describe_controls(controls, now).get(name, ""),
            waiting=count_waiting_at(dialect, name),
            attempts=failed_attempts_at(dialect, name, LISTED_ATTEMPTS),
            history=read_history(dialect, now, over, Scope(DESTINATION, name)),
        )


def _has(process: Process, name: str) -> bool:
    return process.kind in (WORKER, UP) and name in process.details.get("destinations", {})
