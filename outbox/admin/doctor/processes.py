"""Whether somebody is at work. Every process tells the database so, each OUTBOX_PUBLISH_SECONDS."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.admin.doctor.check import Context, Finding, note, ok, problem, warning
from outbox.admin.durations import format_seconds
from outbox.delivery.pool_size import PoolSize, advice
from outbox.settings import INLINE
from outbox.storage.operator_models import Process

MOST_TOLD = 10
# One drain that fails may have met a restart of the database.
FAILED_IN_A_ROW = 3


def workers(context: Context) -> Iterator[Finding]:
    found = context.overview.workers
    if found:
        yield ok(f"{len(found)} at work: {', '.join(map(name_of, found[:MOST_TOLD]))}.")
    elif context.box.settings.dispatch == INLINE:
        yield note(
            "No worker is at work. With OUTBOX_DISPATCH=inline the emitter delivers itself; retries need one all the "
            "same.",
            "Run `outbox up your.module` beside it.",
        )
    else:
        yield _nobody(
            context,
            "No worker is at work: nothing is delivered.",
            "Start some: `outbox worker your.module`, or `outbox up your.module` for everything in one process.",
        )


def scheduler(context: Context) -> Iterator[Finding]:
    found = context.overview.schedulers
    if found:
        yield ok(f"At work: {', '.join(map(name_of, found[:MOST_TOLD]))}.")
    else:
        yield _nobody(
            context,
            "No scheduler is at work: retries that have come due, and events of workers that died, wait until a worker "
            "looks for them by itself, and nothing old is deleted.",
            "Start one: `outbox scheduler`, or `outbox up your.module` for everything in one process.",
        )


def broker(context: Context) -> Iterator[Finding]:
    """Wake-ups and sweeps travel through the workers' broker; a worker that can't reach it looks by itself."""
    cut_off = context.overview.without_broker
    for process in cut_off[:MOST_TOLD]:
        yield problem(
            f"The worker {name_of(process)} can't reach its broker, through which wake-ups and sweeps come: "
            f"{process.details['broker_error']}. It looks for due events by itself, every "
            f"{context.box.settings.sweep_seconds:g} s.",
            f"Start the broker, or see why {process.host} can't reach it: the Redis at OUTBOX_REDIS_URL, unless the "
            "application has set a broker of its own.",
        )
    if not cut_off:
        yield ok("No worker says that it can't reach its broker.")


def silent(context: Context) -> Iterator[Finding]:
    """Those that have told nothing for a while, did not say that they end, and were not replaced since."""
    overview = context.overview
    lost = [
        process
        for process in overview.processes
        if overview.is_silent(process)
        and not any(each.kind == process.kind and each.started_at > process.seen_at for each in overview.alive)
    ]
    for process in lost[:MOST_TOLD]:
        seconds = (overview.now - process.seen_at).total_seconds()
        yield warning(
            f"{process.kind} {name_of(process)} was last heard of {format_seconds(seconds)} ago, and did not say that "
            "it would end: it was killed, hangs, or can't reach the database.",
            f"See on {process.host} what became of it (`ps -p {process.pid}` and its log), and start it again; its "
            "events have been taken over when their leases ran out.",
        )
    if not lost:
        yield ok("Nobody has fallen silent.")


def calls(context: Context) -> Iterator[Finding]:
    """Calls that were interrupted after OUTBOX_MAX_RUN_SECONDS, and have not returned."""
    troubles = [
        (problem if stuck.all_places else warning)(
            f"{stuck.sentence}"
            + ("; that process delivers nothing more to it." if stuck.all_places else "; each keeps a thread."),
            f"Restart {name_of(stuck.process)}, and give the calls of {stuck.destination} a timeout shorter than "
            "OUTBOX_MAX_RUN_SECONDS. With OUTBOX_EXIT_ON_STUCK=true such a process ends by itself.",
        )
        for stuck in context.overview.stuck
    ]
    yield from troubles[:MOST_TOLD]
    if not troubles:
        yield ok("Every call has returned in time.")


def drains(context: Context) -> Iterator[Finding]:
    """A process can be there, say so, and yet deliver nothing."""
    troubles = [
        problem(
            f"On {name_of(process)} the last {failures['in_a_row']:,} drains have failed, for "
            f"{format_seconds(failures['seconds'])}: it delivers nothing. The last error: {failures['error']}",
            "See to that error; if the connection pool is exhausted, the checks `pool` and `calls` say why.",
        )
        for process in context.overview.alive
        if (failures := process.details.get("drain_failures")) and failures["in_a_row"] >= FAILED_IN_A_ROW
    ]
    yield from troubles[:MOST_TOLD]
    if not troubles:
        yield ok("Drains go well.")


def pool(context: Context) -> Iterator[Finding]:
    """The largest that any worker wants is told: they share the code that opens the pool."""
    found = [
        (PoolSize(**each), process) for process in context.overview.workers if (each := process.details.get("pool"))
    ]
    small = [each for each in found if each[0].too_small]
    if not small:
        yield ok("The workers' connection pools are large enough.")
        return
    size, process = max(small, key=lambda each: each[0].wanted - each[0].size)
    yield warning(
        f"The connection pool of {name_of(process)} has {size.size} connections, and that worker may want "
        f"{size.wanted} at the same time: handlers wait for one, and their events are put off.",
        advice(size, context.box.settings.drains),
    )


def hosts(context: Context) -> Iterator[Finding]:
    """SQLite's locks don't reach over a network."""
    found = sorted({process.host for process in context.overview.alive})
    if len(found) > 1:
        yield problem(
            f"Processes on several hosts use this SQLite file: {', '.join(found)}. Over a network file system its "
            "locks don't hold, and the file gets damaged.",
            "Move to PostgreSQL: set OUTBOX_DATABASE_URL to it, and run `outbox init`. (Containers on one host with a "
            "shared volume may ignore this.)",
        )
    else:
        yield ok("All processes are on one host, as SQLite needs it.")


def name_of(process: Process) -> str:
    """`host:pid`"""
    return f"{process.host}:{process.pid}"


def _nobody(context: Context, what: str, advice: str) -> Finding:
    if context.box.settings.publish_seconds == 0:
        return warning(
            "Whether anybody is at work can't be known: with OUTBOX_PUBLISH_SECONDS=0 processes don't tell.",
            "Set OUTBOX_PUBLISH_SECONDS to 10, for all processes.",
        )
    return problem(what, advice)
