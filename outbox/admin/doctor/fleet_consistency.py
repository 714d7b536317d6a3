"""Check that the processes that share a table have the same destinations, the same version and the same settings.

The processes report these in the table outbox_process. The checks compare the reports with each other, and with the
process that runs `outbox doctor`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from outbox.admin.doctor.check import Context, Finding, ok, problem, warning
from outbox.admin.doctor.processes import name_of
from outbox.destinations.description import describe_destination
from outbox.destinations.recorded_destinations import absent_names
from outbox.storage.models import EVENT, PENDING, SENDING
from outbox.version import __version__

HERE = "this command"
MOST_REPORTED = 10


def destinations(context: Context) -> Iterator[Finding]:
    """Check that all workers have the same destinations, because any worker may claim any event."""
    by_process = {name_of(process): process.details.get("destinations", {}) for process in context.overview.workers}
    if context.compares_itself and context.box.registry.destinations:
        by_process[HERE] = {
            name: describe_destination(each) for name, each in context.box.registry.destinations.items()
        }
    all_names = {name for known in by_process.values() for name in known}
    findings = []
    for process, known in by_process.items():
        missing = sorted(all_names - set(known))
        if missing:
            having = sorted(other for other, names in by_process.items() if set(missing) & set(names))
            findings.append(_missing_finding(process, missing, having))
    findings += [
        _difference_finding(name, by_process) for name in sorted(all_names) if len(set(_kinds(name, by_process))) > 1
    ]
    yield from findings[:MOST_REPORTED]
    if not findings:
        yield ok(f"All workers have the same destinations: {', '.join(sorted(all_names)) or 'none'}.")


def recorded_destinations(context: Context) -> Iterator[Finding]:
    """Check that running workers have all recorded destinations.

    An event waits for each recorded destination that wants its type.
    """
    by_name = context.overview.recorded
    running = sorted(name for name, each in by_name.items() if each.alive and not each.retired)
    absent = absent_names(by_name, ())
    for name in absent[:MOST_REPORTED]:
        yield problem(
            f"No running worker has the destination {name}, which a worker recorded earlier: events for it wait.",
            f"Start a worker with the module that registers {name}. If it was renamed, register its successor with "
            f"replaces={name!r}; if it was removed, run `outbox retire {name}`.",
            brief=f"no running worker has the destination {name}",
            events={"destination": name},
        )
    if len(absent) > MOST_REPORTED:
        more = len(absent) - MOST_REPORTED
        yield problem(
            f"No running worker has {more} more destinations.",
            "`outbox destinations` lists them all.",
            brief=f"no running worker has {more} more destinations",
        )
    if not absent:
        yield ok(f"Running workers have all recorded destinations: {', '.join(running) or 'none'}.")


def versions(context: Context) -> Iterator[Finding]:
    """Check that all processes run the same version of the library."""
    by_version: dict[Hashable, list[str]] = defaultdict(list)
    for process in context.overview.alive:
        by_version[process.details.get("version", "?")].append(name_of(process))
    by_version[__version__].append(HERE)
    if len(by_version) == 1:
        yield ok(f"All processes run version {__version__}.")
    else:
        yield warning(
            f"Processes run different versions of the library: {_format_values(by_version)}.",
            "Install the same version everywhere (`pip install --upgrade dramatiq-outbox`), and restart the processes.",
        )


def kinds(context: Context) -> Iterator[Finding]:
    """Check that every worker knows the kinds of rows that wait.

    A worker of a version before there were jobs would deliver a job as an event of the type that is the actor's name:
    its arguments would reach every destination that wants this type.
    """
    counts = context.overview.counts_by_kind
    waiting = {kind for kind in counts if counts[kind][PENDING].number or counts[kind][SENDING].number} - {EVENT}
    unaware = {
        name_of(process): unknown
        for process in context.overview.workers
        if (unknown := sorted(waiting - set(process.details.get("kinds", (EVENT,)))))
    }
    for name, unknown in list(unaware.items())[:MOST_REPORTED]:
        plural = " and ".join(f"{kind}s" for kind in unknown)
        yield problem(
            f"{name} runs a version of the library that does not know {plural}, and {plural} wait: it delivers those "
            "that it claims as events, to every destination that wants events of that name.",
            f"Stop {name}, install this version ({__version__}) there, and start it again. Upgrade all workers before "
            f"the application stores the first of the {plural}.",
            brief=f"{name} runs a version that does not know {plural}",
        )
    if not unaware:
        yield ok("All workers know the kinds of rows that wait.")


def settings(context: Context) -> Iterator[Finding]:
    """Check that the settings that workers and schedulers report are the same in all of them.

    Processes that only emit are not compared.
    """
    known = {
        name_of(process): process.details.get("settings", {})
        for process in (*context.overview.workers, *context.overview.schedulers)
    }
    names = sorted({name for values in known.values() for name in values})
    known[HERE] = {name: getattr(context.box.settings, name) for name in names if hasattr(context.box.settings, name)}
    findings = []
    for name in names:
        by_value: dict[Hashable, list[str]] = defaultdict(list)
        for process, values in known.items():
            if name in values:
                by_value[values[name]].append(process)
        if len(by_value) > 1:
            findings.append(
                warning(
                    f"Processes have different values of OUTBOX_{name.upper()}: {_format_values(by_value)}.",
                    f"Set OUTBOX_{name.upper()} to one value for all processes, and restart those that have another.",
                )
            )
    yield from findings
    if not findings:
        yield ok("All processes have the same settings.")


def _missing_finding(process: str, missing: list[str], having: list[str]) -> Finding:
    names = ", ".join(missing)
    what = f"{process} does not have {names}, which {', '.join(having[:MOST_REPORTED])} has"
    if process == HERE:
        return warning(f"{what}.", "Name all modules that the workers import: `outbox doctor -m your.module`.")
    return problem(
        f"{what}: events for {names} that it claims wait until another worker claims them.",
        f"Restart {process} with the modules that register {names}: `outbox worker your.module`.",
        brief=f"the worker {process} does not have {names}",
    )


def _difference_finding(name: str, by_process: Mapping[str, Mapping[str, Any]]) -> Finding:
    by_kind: dict[Hashable, list[str]] = defaultdict(list)
    for process, known in by_process.items():
        if name in known:
            by_kind[_kind(known[name])].append(process)
    return problem(
        f"The destination {name} is not the same in all processes: {_format_values(by_kind)}.",
        "Restart the processes that run old code: `outbox worker your.module`.",
        brief=f"the destination {name} is not the same in all workers",
    )


def _kinds(name: str, by_process: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    return (_kind(known[name]) for known in by_process.values() if name in known)


def _kind(reported: Mapping[str, Any]) -> str:
    """Return the class of a destination and its event types: `Handler for order.*`."""
    events = reported.get("events")
    types = "" if events is None else f" for {', '.join(events)}"
    return f"{reported.get('kind', '?')}{types}"


def _format_values(processes_by_value: Mapping[Hashable, list[str]]) -> str:
    """Return each value with the processes that have it: `30 (web-1:412); 60 (web-2:399)`."""
    ordered = sorted(processes_by_value.items(), key=str)
    return "; ".join(f"{value} ({', '.join(names[:MOST_REPORTED])})" for value, names in ordered)
