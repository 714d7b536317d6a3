"""Find out how far the consumers of streams and queues are behind, from what the consumers report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from outbox.admin.processes import is_silent
from outbox.storage.operator_models import Process


@dataclass(frozen=True, slots=True)
class StreamGroup:
    """A consumer group of a stream, or the consumers of a queue, as the consumer that reported last describes it.

    `behind`: how many entries no consumer was given yet. `pending`: how many were given to one and are not
    acknowledged; in a queue, to one of the running consumers that report here. `processed` and `parked`: what the
    running consumers have acknowledged, and moved to the dead-letter stream or queue. `consumers`: how many run.
    `kind`: "stream" or "queue".
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
    kind: str = "stream"

    @property
    def depth(self) -> int:
        """Return how many entries have not been acknowledged, whether a consumer was given them or not."""
        return self.behind + self.pending


def stream_groups(processes: Iterable[Process], now: datetime) -> list[StreamGroup]:
    """Return what the consumers among the processes read, that of which they are furthest behind first.

    A consumer that is silent, because it was killed or can't reach the database, counts only if all of its group are:
    then its last report is returned.
    """
    by_group: dict[tuple[str, str], list[Process]] = {}
    for process in sorted(processes, key=lambda each: each.seen_at):
        found = process.details.get("stream")
        if found:
            by_group.setdefault((str(found["stream"]), str(found["group"])), []).append(process)
    groups = [_group(name, members, now) for name, members in by_group.items()]
    return sorted(groups, key=lambda each: (-each.behind, -each.pending, each.stream, each.group))


def _group(name: tuple[str, str], members: list[Process], now: datetime) -> StreamGroup:
    running = [each for each in members if not is_silent(each, now)]
    reports = [each.details["stream"] for each in running]
    last = members[-1].details["stream"]
    # Each consumer of a queue counts what it has itself. (One of an older version does not say so.)
    pending = [int(each["pending"]) for each in (reports if last.get("pending_is_own") else [last])]
    return StreamGroup(
        *name,
        dead_letter=str(last["dead_letter"]),
        behind=int(last["behind"]),
        pending=sum(pending),
        processed=sum(int(each["processed"]) for each in reports),
        parked=sum(int(each["parked"]) for each in reports),
        consumers=len(running),
        seen_at=members[-1].seen_at,
        kind=str(last.get("kind", "stream")),
    )
