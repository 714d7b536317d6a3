"""The commands on a stream's group of consumers, as one of them gives them. Redis or Valkey from 6.2 on.

A group that is gone, as after FLUSHALL, is made again, from the beginning of the stream: what was done is known to the
inbox.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from outbox.consumer.stream_entry import StreamEntry
from outbox.errors import SettingsError
from outbox.storage.redis_client import CommandRefused, make_client, translated_errors

logger = logging.getLogger("outbox")

T = TypeVar("T")

LAG_CAP = 1_000
# By the server, so that the entries need not travel.
COUNT_AFTER = "return #redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])"
# In one step: with a consumer, its pending entries would go.
LEAVE = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
    return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
"""


class GroupState(NamedTuple):
    """How many entries the group has yet to be given, and how many it was given and has not acknowledged."""

    behind: int
    pending: int

    def __str__(self) -> str:
        return f"{self.behind} behind, {self.pending} pending"


class ConsumerGroup:
    """One consumer's view of its group."""

    def __init__(self, url: str, stream: str, *, group: str, consumer: str, dead_letter: str, timeout: float) -> None:
        self.stream, self.group, self.consumer, self.dead_letter = stream, group, consumer, dead_letter
        self._client: Any = make_client(url, response_timeout=timeout, source="The stream's url")

    def check(self) -> None:
        """Redis answers, and both keys are streams or free: an XADD that failed after all would lose its entry."""
        with translated_errors():
            kinds = {key: self._client.type(key).decode() for key in (self.stream, self.dead_letter)}
        for key, kind in kinds.items():
            if kind not in ("stream", "none"):
                raise SettingsError(f"In Redis {key!r} is a {kind}, not a stream.")
        if kinds[self.stream] == "none":
            logger.warning("there is no stream %s yet: waiting for its first entry", self.stream)

    def create(self) -> None:
        """Make the group, unless it is there, and the stream likewise."""
        try:
            with translated_errors():
                self._client.xgroup_create(self.stream, self.group, id="0", mkstream=True)
        except CommandRefused as refusal:
            if not refusal.message.startswith("BUSYGROUP"):
                raise

    def read(self, count: int, seconds: float) -> list[StreamEntry]:
        """New entries; waits for one for so long."""
        milliseconds = max(1, round(seconds * 1000))  # 0 would be for ever
        answer: Any = self._ask(
            lambda: self._client.xreadgroup(
                self.group, self.consumer, {self.stream: ">"}, count=count, block=milliseconds
            ),
            nothing=None,
        )
        entries = answer[0][1] if answer else []
        return [StreamEntry(id.decode(), fields) for id, fields in entries]

    def silent(self, after: str | None, idle_seconds: float, count: int) -> list[str]:
        """The ids of those that nobody has said anything about for so long, in the order of the stream."""
        first = "-" if after is None else f"({after}"
        rows: Any = self._ask(
            lambda: self._client.xpending_range(
                self.stream, self.group, first, "+", count, idle=milliseconds(idle_seconds)
            ),
            nothing=[],
        )
        return [row["message_id"].decode() for row in rows]

    def take_over(self, id: str, idle_seconds: float, max_deliveries: int) -> StreamEntry | None:
        """Take it over and count that, unless somebody was quicker; None as well if there is no such entry any more.

        One at a time, and when its turn has come: what kills its consumer is counted, what would have come next isn't.
        XAUTOCLAIM would count a whole page, and does not tell how often an entry was handed out.
        """
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.xclaim(self.stream, self.group, self.consumer, milliseconds(idle_seconds), [id])
            pipeline.xpending_range(self.stream, self.group, id, id, 1)
            answers: Any = self._ask(pipeline.execute, nothing=([], []))
        claimed, pending = answers
        if claimed and claimed[0][0] is not None:
            counted = pending[0]["times_delivered"]
            return StreamEntry(id, claimed[0][1], min(counted, max_deliveries), spent=counted > max_deliveries)
        self._forget_if_trimmed(id)
        return None

    def keep(self, entries: Sequence[StreamEntry]) -> set[str]:
        """Say that they are being worked on; answers the ids of those that are still to be done."""
        kept: Any = self._ask(
            lambda: self._client.xclaim(
                self.stream, self.group, self.consumer, 0, [entry.id for entry in entries], justid=True
            ),
            nothing=[],
        )
        return {id.decode() for id in kept}

    def acknowledge(self, done: Sequence[StreamEntry], again: Iterable[tuple[StreamEntry, int]]) -> None:
        """Those that are done, and those that come again, each with how often it counts as handed out."""
        with self._client.pipeline(transaction=False) as pipeline:
            if done:
                pipeline.xack(self.stream, self.group, *(entry.id for entry in done))
            for entry, deliveries in again:
                pipeline.xclaim(
                    self.stream, self.group, self.consumer, 0, [entry.id], retrycount=deliveries, justid=True
                )
            self._ask(pipeline.execute, nothing=None)

    def park(self, entry: StreamEntry, error: str) -> None:
        """Move it to the dead-letter stream, with what led to it."""
        notes = {
            b"error": error.encode(errors="backslashreplace"),
            b"deliveries": entry.deliveries,
            b"stream": self.stream,
            b"group": self.group,
            b"entry": entry.id,
        }
        with translated_errors(), self._client.pipeline(transaction=True) as pipeline:
            pipeline.xadd(self.dead_letter, entry.fields | notes)
            pipeline.xack(self.stream, self.group, entry.id)
            pipeline.execute()

    def state(self) -> GroupState:
        """Redis 7 knows the lag, unless entries were deleted; otherwise they are counted, up to a cap."""
        try:
            with translated_errors():
                groups = self._client.xinfo_groups(self.stream)
                found = next((each for each in groups if each["name"] == self.group.encode()), None)
                if found is None:
                    return GroupState(int(self._client.xlen(self.stream)), 0)
                lag = found.get("lag")
                if lag is None:
                    lag = self._client.eval(COUNT_AFTER, 1, self.stream, found["last-delivered-id"], LAG_CAP)
                return GroupState(int(lag), int(found["pending"]))
        except CommandRefused as refusal:
            if "no such key" in refusal.message:
                return GroupState(0, 0)
            raise

    def leave(self) -> None:
        """Take this consumer out of the group, if it owes nothing and both are there."""
        with contextlib.suppress(CommandRefused), translated_errors():
            self._client.eval(LEAVE, 1, self.stream, self.group, self.consumer)

    def remove_silent(self, silent_seconds: float) -> None:
        """Take those out of the group that owe nothing and were not heard of for so long: killed ones can't leave.

        One that lives after all is back with its next command.
        """
        consumers: Any = self._ask(lambda: self._client.xinfo_consumers(self.stream, self.group), nothing=[])
        for each in consumers:
            if each["idle"] >= milliseconds(silent_seconds):
                with contextlib.suppress(CommandRefused), translated_errors():
                    self._client.eval(LEAVE, 1, self.stream, self.group, each["name"])

    def close(self) -> None:
        self._client.close()

    def _forget_if_trimmed(self, id: str) -> None:
        """Redis 7 does that by itself; 6.2 would hand out the id for ever."""
        with translated_errors():
            if not self._client.xrange(self.stream, id, id):
                self._client.xack(self.stream, self.group, id)
                logger.warning("%s: entry %s was trimmed away before it was processed", self.stream, id)

    def _ask(self, command: Callable[[], T], *, nothing: T) -> T:
        try:
            with translated_errors():
                return command()
        except CommandRefused as refusal:
            # The second is what 6.2 tells those who wait when the stream goes, the third what XINFO says.
            if not refusal.message.startswith(("NOGROUP", "UNBLOCKED", "ERR no such key")):
                raise
        logger.warning("the group %s of %s is gone: making it again, from the beginning", self.group, self.stream)
        self.create()
        return nothing


def milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
