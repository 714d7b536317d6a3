"""Read which processes report to the database, and which circuit breakers they report.

Every process of the outbox writes such a report every few seconds (`telemetry/process_reports.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from outbox.storage.dialect import Dialect
from outbox.storage.operator_models import Process
from outbox.telemetry.process_reports import APPLICATION, MISSED_REPORTS, SCHEDULER, UP, WORKER


def processes(dialect: Dialect) -> list[Process]:
    """Return the processes that are in the table outbox_process, workers first."""
    with dialect.connection():
        rows: list[Process] = dialect.select(Process.select())
    order = {UP: 0, WORKER: 1, SCHEDULER: 2}
    return sorted(rows, key=lambda each: (order.get(each.kind, 3), each.kind, each.host, each.pid))


def is_silent(process: Process, now: datetime) -> bool:
    """Return whether the process has missed more than MISSED_REPORTS reports."""
    interval_seconds = process.details.get("publish_seconds", 10.0)
    return bool(now - process.seen_at > timedelta(seconds=MISSED_REPORTS * interval_seconds + 1))


def without_ended_applications(reported: Iterable[Process], now: datetime) -> list[Process]:
    """Return the processes without those of applications that are silent: they have ended.

    A web server that is stopped with SIGTERM, as uvicorn is, ends without running what is to run at its exit. So it
    can't report its end, and nothing is wrong.
    """
    return [each for each in reported if each.kind != APPLICATION or not is_silent(each, now)]


def breakers(reported: Iterable[Process], now: datetime) -> dict[str, dict[str, Any]]:
    """Return the circuit breakers that are open or recovering, as the workers report them.

    Of processes that share their circuit breakers in Redis, the latest report wins, among those that have sent the
    destination events. Another process, such as a scheduler, may have the destination, but does not know whether it can
    be reached. Processes of earlier versions do not report what they have tried. Without Redis, each process has a
    circuit breaker of its own: then one that is open wins, since that process sends nothing. Processes that no longer
    report are left out. `open_seconds` is for how long it has been open.
    """
    found: dict[str, dict[str, Any]] = {}
    own: dict[str, dict[str, Any]] = {}
    for process in sorted(reported, key=lambda each: each.seen_at):
        if is_silent(process, now):
            continue
        age = max(0.0, (now - process.seen_at).total_seconds())
        states = {name: _aged(state, age) for name, state in process.details.get("breakers", {}).items()}
        if not process.details.get("shares_breakers", True):
            own |= {name: state for name, state in states.items() if state.get("open") or name not in own}
            continue
        for name in process.details.get("tried", process.details.get("destinations", {})):
            found.pop(name, None)
        found |= states
    return found | {name: state for name, state in own.items() if state.get("open") or name not in found}


def _aged(state: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the state of a circuit breaker this many seconds after its report."""
    since, left = state.get("open_seconds"), state.get("seconds")
    aged = state if left is None else state | {"seconds": max(0.0, left - seconds)}
    return aged if since is None else aged | {"open_seconds": since + seconds}
