"""Check the running processes, as they report themselves to the database every OUTBOX_PUBLISH_SECONDS."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.admin.doctor.check import Context, Finding, note, ok, problem, warning
from outbox.admin.durations import format_seconds
from outbox.delivery.pool_size import PoolSize, advice
from outbox.errors import as_sentence
from outbox.operations.count import Count
from outbox.settings import INLINE
from outbox.storage.operator_models import Process

MOST_REPORTED = 10
# A drain delivers batches of due events until a batch is not full. A single drain may fail because the database
# restarts.
FAILED_DRAINS = 3


def workers(context: Context) -> Iterator[Finding]:
    """Check that a worker is running."""
    running = context.overview.workers
    if running:
        yield ok(f"{len(running)} running: {', '.join(map(name_of, running[:MOST_REPORTED]))}.")
    elif context.box.settings.dispatch == INLINE:
        yield note(
            "No worker is running. With OUTBOX_DISPATCH=inline the emitting process delivers events itself, but "
            "retries need a worker.",
            "Run `outbox up your.module` as well.",
        )
    else:
        unfinished = context.overview.backlog.unfinished
        waits = f", {unfinished.of('event')} {'waits' if unfinished == Count(1) else 'wait'}"
        yield _not_running(
            context,
            "No worker is running: nothing is delivered.",
            "Start workers: `outbox worker your.module`, or `outbox up your.module` for everything in one process.",
            f"no worker is running{waits if unfinished.number else ''}",
        )


def scheduler(context: Context) -> Iterator[Finding]:
    """Check that a scheduler is running."""
    running = context.overview.schedulers
    if running:
        yield ok(f"Running: {', '.join(map(name_of, running[:MOST_REPORTED]))}.")
    else:
        yield _not_running(
            context,
            "No scheduler is running: due retries, and events of workers that died, wait until a worker polls for "
            "them, and old events are not deleted.",
            "Start a scheduler: `outbox scheduler`, or `outbox up your.module` for everything in one process.",
            "no scheduler is running",
        )


def broker_connections(context: Context) -> Iterator[Finding]:
    """Check that workers reach their broker.

    The broker carries wake-ups (sent after a commit) and sweeps (sent by the scheduler): messages that tell a worker
    that events are due. A worker that can't reach its broker polls the table.
    """
    unconnected = context.overview.without_broker
    for process in unconnected[:MOST_REPORTED]:
        yield problem(
            f"The worker {name_of(process)} can't reach its broker: {as_sentence(process.details['broker_error'])} "
            "It gets no wake-ups and no sweeps, and polls for due events every "
            f"{context.box.settings.sweep_seconds:g} s.",
            f"Start the broker, or find out why {process.host} can't reach it. It is the Redis at OUTBOX_REDIS_URL, "
            "unless the application has set a broker of its own.",
            brief=f"the worker {name_of(process)} can't reach its broker",
        )
    if not unconnected:
        yield ok("No worker reports that it can't reach its broker.")


def silent_processes(context: Context) -> Iterator[Finding]:
    """Check for processes that stopped reporting without having reported their end, and were not replaced since."""
    overview = context.overview
    silent = [
        process
        for process in overview.processes
        if overview.is_silent(process)
        and not any(each.kind == process.kind and each.started_at > process.seen_at for each in overview.alive)
    ]
    for process in silent[:MOST_REPORTED]:
        seconds = (overview.now - process.seen_at).total_seconds()
        yield warning(
            f"{process.kind} {name_of(process)} last reported {format_seconds(seconds)} ago, and did not report "
            "that it ended: it was killed, hangs, or can't reach the database.",
            f"Find out what happened on {process.host} (`ps -p {process.pid}`, and its log), and start it again. Other "
            "workers take over its events when their leases expire.",
            brief=f"the {process.kind} {name_of(process)} has not reported for {format_seconds(seconds)}",
        )
    if not silent:
        yield ok("No process has stopped reporting.")


def stuck_calls(context: Context) -> Iterator[Finding]:
    """Check for calls of destinations that were interrupted after OUTBOX_MAX_RUN_SECONDS and have not returned."""
    effect = {True: "that process delivers nothing more to it", False: "each of them occupies a thread"}
    findings = [
        (problem if stuck.all_places else warning)(
            f"{stuck.sentence}; {effect[stuck.all_places]}.",
            f"Restart {name_of(stuck.process)}, and give the calls of {stuck.destination} a timeout shorter than "
            "OUTBOX_MAX_RUN_SECONDS. With OUTBOX_EXIT_ON_STUCK=true such a process exits automatically.",
            brief=stuck.sentence,
        )
        for stuck in context.overview.stuck
    ]
    yield from findings[:MOST_REPORTED]
    if not findings:
        yield ok("No process reports a call that has not returned in time.")


def failing_drains(context: Context) -> Iterator[Finding]:
    """Check that drains succeed. A process may be running and reporting, and still deliver nothing."""
    findings = [
        problem(
            f"On {name_of(process)} the last {failures['in_a_row']:,} drains have failed, for "
            f"{format_seconds(failures['seconds'])}: it delivers nothing. The last error: {failures['error']}",
            "Fix the cause of that error; if the connection pool is exhausted, the checks `pool` and `calls` say why.",
            brief=f"drains fail on {name_of(process)}, for {format_seconds(failures['seconds'])}",
        )
        for process in context.overview.alive
        if (failures := process.details.get("drain_failures")) and failures["in_a_row"] >= FAILED_DRAINS
    ]
    yield from findings[:MOST_REPORTED]
    if not findings:
        yield ok("No process reports failing drains.")


def connection_pools(context: Context) -> Iterator[Finding]:
    """Check that the workers' connection pools are large enough.

    Only the pool that lacks most connections is reported, because all workers run the same code that opens the pool.
    """
    pools = [
        (PoolSize(**each), process) for process in context.overview.workers if (each := process.details.get("pool"))
    ]
    small = [(size, process) for size, process in pools if size.too_small]
    if not small:
        yield ok("The workers' connection pools are large enough.")
        return
    size, process = max(small, key=lambda each: each[0].wanted - each[0].size)
    yield warning(
        f"The connection pool of {name_of(process)} has {size.size} connections, but that worker may need "
        f"{size.wanted} at the same time: handlers wait for one, and their events are delayed.",
        advice(size, context.box.settings.drains),
        brief=f"the connection pool of {name_of(process)} is too small",
    )


def hosts(context: Context) -> Iterator[Finding]:
    """Check that all processes are on one host, because SQLite's locks don't work over a network."""
    names = sorted({process.host for process in context.overview.alive})
    if len(names) > 1:
        yield problem(
            f"Processes on several hosts use this SQLite file: {', '.join(names)}. Its locks don't "
            "work over a network file system, and the file gets damaged.",
            "Use PostgreSQL instead: set OUTBOX_DATABASE_URL, and run `outbox init`. (Ignore this if the processes are "
            "containers on one host with a shared volume.)",
        )
    else:
        yield ok("All processes are on one host, as SQLite requires.")


def name_of(process: Process) -> str:
    """Return `host:pid`."""
    return f"{process.host}:{process.pid}"


def _not_running(context: Context, what: str, advice: str, brief: str) -> Finding:
    if context.box.settings.publish_seconds == 0 and not context.overview.processes:
        return warning(
            "It is not known whether processes are running: with OUTBOX_PUBLISH_SECONDS=0 they don't report.",
            "Set OUTBOX_PUBLISH_SECONDS to 10, for all processes.",
            brief="it is not known which processes are running",
        )
    return problem(what, advice, brief=brief)
