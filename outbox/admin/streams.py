"""Find out how far the consumers of streams are behind, from what the consumers report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from outbox.storage.operator_models import Process


@dataclass(frozen=True, slots=True)
class StreamGroup:
    """A consumer group of a stream, as the consumer that reported last describes it.

    `behind`: how many entries no consumer has read yet. `pending`: how many were read and are not acknowledged.
    `processed` and `parked`: what the running consumers have acknowledged, and moved to the dead-letter stream.
    """

    stream: str
    group: str
    dead_letter: str
    behind: int
    pending: int
    processed: int
    parked: int
    consumers: int
    seen_at: datetime


def stream_groups(processes: Iterable[Process]) -> list[StreamGroup]:
    """Return the groups of the consumers that are running, those that are furthest behind first."""
    by_group: dict[tuple[str, str], list[Process]] = {}
    for process in sorted(processes, key=lambda each: each.seen_at):
        found = process.details.get("stream")
        if found:
            by_group.setdefault((str(found["stream"]), str(found["group"])), []).append(process)
    groups = [_group(name, members) for name, members in by_group.items()]
    return sorted(groups, key=lambda each: (-each.behind, -each.pending, each.stream, each.group))


def _group(name: tuple[str, str], members: list[Process]) -> StreamGroup:
    last = members[-1].details["stream"]
    return StreamGroup(
        *name,
        dead_letter=str(last["dead_letter"]),
        behind=int(last["behind"]),
        pending=int(last["pending"]),
        processed=sum(int(each.details["stream"]["processed"]) for each in members),
        parked=sum(int(each.details["stream"]["parked"]) for each in members),
        consumers=len(members),
        seen_at=members[-1].seen_at,
    )
