"""Whether the processes that share a table agree: on the destinations, the library's version, and the settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from outbox.admin.doctor.check import Context, Finding, ok, problem, warning
from outbox.admin.doctor.processes import name_of
from outbox.destinations.description import description
from outbox.destinations.recorded_destinations import absent_names, read_recorded
from outbox.version import __version__

HERE = "this command"
MOST_TOLD = 10


def destinations(context: Context) -> Iterator[Finding]:
    """Any worker may get any event, so each needs them all."""
    sets = {name_of(process): process.details.get("destinations", {}) for process in context.overview.workers}
    if context.box.registry.destinations:
        sets[HERE] = {name: description(each) for name, each in context.box.registry.destinations.items()}
    everything = {name for known in sets.values() for name in known}
    troubles = []
    for who, known in sets.items():
        missing = sorted(everything - set(known))
        if missing:
            having = sorted(other for other, theirs in sets.items() if set(missing) & set(theirs))
            troubles.append(_lacks(who, missing, having))
    troubles += [_differs(name, sets) for name in sorted(everything) if len(set(_kinds(name, sets))) > 1]
    yield from troubles[:MOST_TOLD]
    if not troubles:
        yield ok(f"All that are known deliver to the same: {', '.join(sorted(everything)) or 'nothing'}.")


def recorded(context: Context) -> Iterator[Finding]:
    """An event waits for every recorded destination that wants its type."""
    by_name = read_recorded(context.box.dialect)[1]
    running = sorted(name for name, each in by_name.items() if each.alive and not each.retired)
    absent = absent_names(by_name, ())
    for name in absent[:MOST_TOLD]:
        yield problem(
            f"No running worker has the destination {name}, which one has recorded: events that it wants wait for it.",
            f"Start a worker with the module that registers it; if it is gone for good: `outbox retire {name}`.",
        )
    if len(absent) > MOST_TOLD:
        more = len(absent) - MOST_TOLD
        yield problem(f"So it is with {more} more.", "`outbox destinations` lists them all.")
    if not absent:
        yield ok(f"Running workers have all that are recorded: {', '.join(running) or 'none is'}.")


def versions(context: Context) -> Iterator[Finding]:
    found: dict[Hashable, list[str]] = defaultdict(list)
    for process in context.overview.alive:
        found[process.details.get("version", "?")].append(name_of(process))
    found[__version__].append(HERE)
    if len(found) == 1:
        yield ok(f"All are of version {__version__}.")
    else:
        yield warning(
            f"There are several versions of the library at work: {_told(found)}.",
            "Bring all to the same: `pip install --upgrade dramatiq-outbox`, and restart them.",
        )


def settings(context: Context) -> Iterator[Finding]:
    """Those that processes publish; the applications', which only emit, don't matter."""
    known = {
        name_of(process): process.details.get("settings", {})
        for process in (*context.overview.workers, *context.overview.schedulers)
    }
    names = sorted({name for each in known.values() for name in each})
    known[HERE] = {name: getattr(context.box.settings, name) for name in names if hasattr(context.box.settings, name)}
    troubles = []
    for name in names:
        found: dict[Hashable, list[str]] = defaultdict(list)
        for who, each in known.items():
            if name in each:
                found[each[name]].append(who)
        if len(found) > 1:
            troubles.append(
                warning(
                    f"OUTBOX_{name.upper()} is not the same everywhere: {_told(found)}.",
                    f"Set OUTBOX_{name.upper()} to one value for all processes, and restart those that had another.",
                )
            )
    yield from troubles
    if not troubles:
        yield ok("All that are known have the same settings.")


def _lacks(who: str, missing: list[str], having: list[str]) -> Finding:
    names = ", ".join(missing)
    what = f"{who} does not know {names}, which {', '.join(having[:MOST_TOLD])} knows"
    if who == HERE:
        return warning(f"{what}.", "Name all modules that the workers load: `outbox doctor -m your.module`.")
    return problem(
        f"{what}: events that it claims wait until another worker gets them.",
        f"Restart it with the modules that register {names}: `outbox worker your.module`.",
    )


def _differs(name: str, sets: Mapping[str, Mapping[str, Any]]) -> Finding:
    found: dict[Hashable, list[str]] = defaultdict(list)
    for who, known in sets.items():
        if name in known:
            found[_kind(known[name])].append(who)
    return problem(
        f"Processes mean different things by the destination {name}: {_told(found)}.",
        "Restart those that run old code: `outbox worker your.module`.",
    )


def _kinds(name: str, sets: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    return (_kind(known[name]) for known in sets.values() if name in known)


def _kind(published: Mapping[str, Any]) -> str:
    events = published.get("events")
    chosen = "" if events is None else f" for {', '.join(events)}"
    return f"{published.get('kind', '?')}{chosen}"


def _told(found: Mapping[Hashable, list[str]]) -> str:
    parts = (f"{value} ({', '.join(who[:MOST_TOLD])})" for value, who in sorted(found.items(), key=str))
    return "; ".join(parts)
