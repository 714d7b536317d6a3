"""`outbox status`: print a summary of the outbox: counts, activity, failures, unhealthy destinations, processes."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from outbox.admin.blocked_keys import describe_head
from outbox.admin.doctor.check import PROBLEM, WARNING, Finding
from outbox.admin.durations import format_bound, format_duration, format_seconds
from outbox.admin.overview import Overview, overview
from outbox.admin.verdict import find, verdict_on
from outbox.cli.doctor import COLOURS
from outbox.cli.options import json_option, modules_option
from outbox.cli.output import echo_json, echo_table, one_line
from outbox.cli.watch import watch_option
from outbox.current_outbox import current
from outbox.operations.count import Count
from outbox.storage.models import FAILED

RECENT_MINUTES = 5


@click.command(short_help="Show a summary of the outbox.")
@json_option
@watch_option
@modules_option
def status(as_json: bool) -> None:
    """Show how many events and jobs wait, why some failed, how fast they are delivered, and which processes run."""
    box = current()
    box.check_schema()
    view = overview(box.dialect)
    findings = find(box, view)
    if as_json:
        echo_json(as_data(view, findings))
        return
    _echo_verdict(findings)
    if view.events_unread:
        click.echo(f"events: not known, since they could not be read within {format_seconds(view.events_unread)}")
    else:
        _echo_counts(view)
    _echo_activity(view)
    _echo_failures(view)
    _echo_breakers(view)
    _echo_stuck(view)
    _echo_processes(view)
    _echo_brokers(view)
    _echo_absent(view)


def as_data(view: Overview, findings: list[Finding]) -> dict[str, Any]:
    """Return the summary for --json. A count with `at_least` true is a minimum: counting stopped there."""
    verdict = verdict_on(findings)
    return {
        "level": verdict.level,
        "verdict": verdict.sentence,
        "findings": [each.as_data() for each in findings],
        "now": view.now,
        "events_unread_seconds": view.events_unread or None,
        "blockers": [asdict(root) for root in view.roots],
        "counts": {name: asdict(count) for name, count in view.counts.items()},
        "counts_by_kind": {
            kind: {name: asdict(count) for name, count in counts.items()}
            for kind, counts in view.counts_by_kind.items()
        },
        "backlog": asdict(view.backlog),
        "blocked_keys": {
            "count": asdict(view.blocked.count),
            "since": view.blocked.since,
        },
        "failures": [asdict(failure) for failure in view.failures],
        "failures_looked_at": asdict(view.failures_looked_at),
        "failures_left_out": {"causes": view.more_causes, "events": view.more_failures},
        "failed_by_destination": {name: asdict(count) for name, count in view.failed_at.items()},
        "activity": [asdict(minute) for minute in view.activity],
        "latency_seconds": {
            f"p{quantile * 100:g}": None if seconds == math.inf else seconds
            for quantile, seconds in view.latency.items()
        },
        "breakers": view.breakers,
        "absent_destinations": view.absent,
        "processes": [
            {
                "kind": process.kind,
                "host": process.host,
                "pid": process.pid,
                "started_at": process.started_at,
                "seen_at": process.seen_at,
                "silent": view.is_silent(process),
                "destinations": sorted(process.details.get("destinations", {})),
                "version": process.details.get("version"),
                "ready": process.details.get("ready", True),
                "stuck": process.details.get("stuck", {}),
                "drain_failures": process.details.get("drain_failures", {}),
                "broker_error": process.details.get("broker_error"),
            }
            for process in view.processes
        ],
    }


def _echo_verdict(findings: list[Finding]) -> None:
    verdict = verdict_on(findings)
    click.secho(one_line(verdict.sentence), fg=COLOURS[verdict.level], bold=True)
    if verdict.level in (WARNING, PROBLEM):
        click.echo("`outbox doctor` says what to do.")
    click.echo()


def _echo_counts(view: Overview) -> None:
    kinds = view.counts_by_kind
    echo_table(
        ("status", *(f"{kind}s" for kind in kinds)),
        [(status, *(counts[status] for counts in kinds.values())) for status in view.counts],
        right=range(1, len(kinds) + 1),
    )
    backlog = view.backlog
    line = f"due now {backlog.due}, in flight {backlog.in_flight}"
    if backlog.expired.number:
        line += f", with an expired lease {backlog.expired}"
    if backlog.oldest_created_at is not None:
        line += f"; the oldest unfinished is {format_duration(view.now - backlog.oldest_created_at)} old"
    if backlog.oldest_due_at is not None:
        line += f", the longest due {format_duration(view.now - backlog.oldest_due_at)}"
    click.echo(line)
    _echo_blocked(view)


def _echo_blocked(view: Overview) -> None:
    blocked = view.blocked
    if not blocked.longest or blocked.since is None:
        return
    longest = blocked.longest[0]
    click.echo(
        one_line(
            f"blocked keys {blocked.count}, {view.backlog.waiting.of('event')} wait; the longest for "
            f"{format_duration(view.now - blocked.since)}: {longest.key} at {longest.destination}, behind an event: "
            f"{describe_head(longest, view.now)} (see outbox keys)"
        )
    )


def _echo_activity(view: Overview) -> None:
    recent = view.activity[-RECENT_MINUTES:]
    sums = {
        name: sum(getattr(minute, name) for minute in recent) for name in ("emitted", "delivered", "retried", "failed")
    }
    counts = ", ".join(f"{count:,} {name}" for name, count in sums.items())
    click.echo(f"last {RECENT_MINUTES} minutes: {counts}")
    if view.latency:
        latencies = ", ".join(f"p{each * 100:g} {format_bound(seconds)}" for each, seconds in view.latency.items())
        click.echo(f"commit to delivery, last hour: {latencies}")


def _echo_failures(view: Overview) -> None:
    if not view.failures:
        return
    looked_at = view.failures_looked_at
    of_all = f" of {view.counts[FAILED]}" if looked_at.at_least else ""
    click.echo(f"\nthe newest {looked_at.number:,}{of_all} failures, by cause:")
    echo_table(
        ("events", "destination", "first", "last", "error"),
        [
            (
                f"{failure.events:,}",
                failure.destination,
                _ago(view, failure.first_at),
                _ago(view, failure.last_at),
                failure.error,
            )
            for failure in view.failures
        ],
        right=[0],
    )
    if view.more_causes:
        causes = "cause" if view.more_causes == 1 else "causes"
        click.echo(f"and {view.more_causes:,} more {causes}, of {Count(view.more_failures).of('event')}")
    if len(view.failed_at) > 1:
        counts = sorted(view.failed_at.items(), key=lambda each: each[1].number, reverse=True)
        click.echo(
            one_line("failed by destination: " + ", ".join(f"{name or 'none'} {count}" for name, count in counts))
        )


def _ago(view: Overview, moment: datetime | None) -> str:
    return "" if moment is None else f"{format_duration(view.now - moment)} ago"


def _echo_breakers(view: Overview) -> None:
    if not view.breakers:
        return
    click.echo("\nunhealthy destinations:")
    for name, breaker in view.breakers.items():
        state = f"unavailable, next try in {breaker['seconds']:.0f} s" if breaker["open"] else "recovering"
        click.echo(one_line("  " + ": ".join(filter(None, (name, state, breaker["error"])))))


def _echo_stuck(view: Overview) -> None:
    if not view.stuck:
        return
    click.echo("\ncalls that have not returned in time:")
    for stuck in view.stuck:
        consequence = "; this process delivers nothing more to it" if stuck.all_places else ""
        click.echo(one_line(f"  {stuck.sentence}{consequence}"))


def _echo_processes(view: Overview) -> None:
    if not view.processes:
        click.echo("\nno process has reported lately: start `outbox worker your.module` and `outbox scheduler`")
        return
    click.echo()
    echo_table(
        ("process", "host", "pid", "seen", "delivers to"),
        [
            (
                process.kind,
                process.host,
                process.pid,
                f"{format_duration(view.now - process.seen_at)} ago{' (silent)' if view.is_silent(process) else ''}",
                ", ".join(sorted(process.details.get("destinations", {}))),
            )
            for process in view.processes
        ],
    )


def _echo_brokers(view: Overview) -> None:
    for process in view.without_broker:
        click.echo(
            one_line(
                f"worker {process.host}:{process.pid} can't reach its broker (Redis), so it polls for due "
                f"events: {process.details['broker_error']}"
            )
        )


def _echo_absent(view: Overview) -> None:
    if view.absent:
        names = ", ".join(one_line(name) for name in view.absent)
        click.echo(
            f"\nno running worker has: {names} (their events wait; if one no longer exists, run `outbox retire NAME`)"
        )
