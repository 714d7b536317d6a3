"""Run the Redis commands that a consumer needs for its consumer group, with Redis 6.2 or later, or Valkey.

For each group, Redis keeps a list of the entries that were delivered to a consumer and not acknowledged: the *pending*
entries. The list says how often each entry was delivered, and how long ago a consumer last claimed it: its *idle time*.

If the group does not exist any more, for example after FLUSHALL, it is created again from the beginning of the stream.
The inbox skips the events that were processed before.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from outbox.consumer.entry import Entry
from outbox.consumer.source import SourceState
from outbox.errors import SettingsError
from outbox.storage.redis_client import CommandRefused, make_client, translated_errors

logger = logging.getLogger(__name__)

T = TypeVar("T")

LAG_CAP = 1_000
# A script counts the entries in the server, so that they are not transferred.
COUNT_AFTER = "return #redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])"
# A script is atomic. That is needed because Redis deletes a consumer together with its pending entries.
DELETE_CONSUMER_WITHOUT_PENDING = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
    return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
"""
# How Redis's errors begin if the group or the stream does not exist: of most commands; of a blocked XREADGROUP in Redis
# 6.2, when the stream is deleted; of XINFO.
GROUP_IS_MISSING = ("NOGROUP", "UNBLOCKED", "ERR no such key")


class ConsumerGroup:
    """A consumer group, from the view of one of its consumers."""

    def __init__(self, url: str, stream: str, *, group: str, consumer: str, dead_letter: str, timeout: float) -> None:
        self.stream, self.group, self.consumer, self.dead_letter = stream, group, consumer, dead_letter
        self._client: Any = make_client(url, response_timeout=timeout, source="The stream's url")

    def check(self) -> None:
        """Raise an error unless Redis responds and both keys are streams or unused.

        If the dead-letter key had another type, a later XADD would fail, and its entry would be lost.
        """
        with translated_errors():
            kinds = {key: self._client.type(key).decode() for key in (self.stream, self.dead_letter)}
        for key, kind in kinds.items():
            if kind not in ("stream", "none"):
                raise SettingsError(f"In Redis {key!r} is a {kind}, not a stream.")
        if kinds[self.stream] == "none":
            logger.warning("there is no stream %s yet; waiting for its first entry", self.stream)

    def create(self) -> None:
        """Create the group, and the stream, unless they exist."""
        try:
            with translated_errors():
                self._client.xgroup_create(self.stream, self.group, id="0", mkstream=True)
        except CommandRefused as refusal:
            if not refusal.message.startswith("BUSYGROUP"):
                raise

    def read(self, count: int, seconds: float) -> list[Entry]:
        """Return up to `count` new entries. Wait up to `seconds` for the first one."""
        block = max(1, round(seconds * 1000))  # 0 would mean to wait without a limit
        reply: Any = self._run(
            lambda: self._client.xreadgroup(self.group, self.consumer, {self.stream: ">"}, count=count, block=block),
            if_missing=None,
        )
        entries = reply[0][1] if reply else []
        return [Entry(id.decode(), fields) for id, fields in entries]

    def idle_entries(self, after: str | None, idle_seconds: float, count: int) -> list[str]:
        """Return the ids of up to `count` pending entries that have been idle for `idle_seconds`, in stream order.

        The search starts after the id `after`, or at the first entry if it is None.
        """
        first = "-" if after is None else f"({after}"
        rows: Any = self._run(
            lambda: self._client.xpending_range(
                self.stream, self.group, first, "+", count, idle=milliseconds(idle_seconds)
            ),
            if_missing=[],
        )
        return [row["message_id"].decode() for row in rows]

    def take_over(self, id: str, idle_seconds: float, max_deliveries: int) -> Entry | None:
        """Claim a pending entry for this consumer, and count that as a delivery.

        Return None if another consumer has claimed it meanwhile, or if it does not exist any more.

        Entries are claimed one at a time, just before they are processed. So if an entry crashes its consumer, only the
        delivery of this entry was counted. XAUTOCLAIM would count a whole page, and does not return how often an entry
        was delivered.
        """
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.xclaim(self.stream, self.group, self.consumer, milliseconds(idle_seconds), [id])
            pipeline.xpending_range(self.stream, self.group, id, id, 1)
            replies: Any = self._run(pipeline.execute, if_missing=([], []))
        claimed, pending = replies
        if claimed and claimed[0][0] is not None:
            deliveries = pending[0]["times_delivered"]
            return Entry(id, claimed[0][1], min(deliveries, max_deliveries), is_exhausted=deliveries > max_deliveries)
        self._acknowledge_if_trimmed(id)
        return None

    def reset_idle_time(self, entries: Sequence[Entry]) -> set[str]:
        """Reset the idle time of these entries, so that no other consumer takes them over. Return the pending ids."""
        claimed: Any = self._run(
            lambda: self._client.xclaim(
                self.stream, self.group, self.consumer, 0, [entry.id for entry in entries], justid=True
            ),
            if_missing=[],
        )
        return {id.decode() for id in claimed}

    def acknowledge(self, processed: Sequence[Entry], redelivered: Iterable[tuple[Entry, int]]) -> None:
        """Acknowledge processed entries, and store the number of deliveries of those that will be delivered again."""
        with self._client.pipeline(transaction=False) as pipeline:
            if processed:
                pipeline.xack(self.stream, self.group, *(entry.id for entry in processed))
            for entry, deliveries in redelivered:
                pipeline.xclaim(
                    self.stream, self.group, self.consumer, 0, [entry.id], retrycount=deliveries, justid=True
                )
            self._run(pipeline.execute, if_missing=None)

    def park(self, entry: Entry, error: str) -> None:
        """Move an entry to the dead-letter stream. Its fields also say the error, and the stream that it came from."""
        extra_fields = {
            b"error": error.encode(errors="backslashreplace"),
            b"deliveries": entry.deliveries,
            b"stream": self.stream,
            b"group": self.group,
            b"entry": entry.id,
        }
        with translated_errors(), self._client.pipeline(transaction=True) as pipeline:
            pipeline.xadd(self.dead_letter, entry.fields | extra_fields)
            pipeline.xack(self.stream, self.group, entry.id)
            pipeline.execute()

    def state(self, *, cap: int = LAG_CAP) -> SourceState:
        """Return how far the group is behind.

        Redis reports the lag from version 7 on, unless entries were deleted. Otherwise it is counted, up to `cap`.
        """
        try:
            with translated_errors():
                groups = self._client.xinfo_groups(self.stream)
                info = next((each for each in groups if each["name"] == self.group.encode()), None)
                if info is None:
                    return SourceState(int(self._client.xlen(self.stream)), 0)
                lag = info.get("lag")
                if lag is None:
                    lag = self._client.eval(COUNT_AFTER, 1, self.stream, info["last-delivered-id"], cap)
                return SourceState(int(lag), int(info["pending"]))
        except CommandRefused as refusal:
            if "no such key" in refusal.message:
                return SourceState(0, 0)
            raise

    def leave(self) -> None:
        """Remove this consumer from the group, unless it has pending entries."""
        self._delete_consumer(self.consumer)

    def remove_idle_consumers(self, idle_seconds: float) -> None:
        """Remove the consumers that have no pending entries and have sent no command for `idle_seconds`.

        A consumer that was killed could not leave the group. If a removed consumer is still running, its next command
        adds it again.
        """
        consumers: Any = self._run(lambda: self._client.xinfo_consumers(self.stream, self.group), if_missing=[])
        for each in consumers:
            if each["idle"] >= milliseconds(idle_seconds):
                self._delete_consumer(each["name"])

    def _delete_consumer(self, name: str | bytes) -> None:
        with contextlib.suppress(CommandRefused), translated_errors():  # Redis refuses it if the group does not exist
            self._client.eval(DELETE_CONSUMER_WITHOUT_PENDING, 1, self.stream, self.group, name)

    def close(self) -> None:
        self._client.close()

    def _acknowledge_if_trimmed(self, id: str) -> None:
        """Acknowledge a pending entry that is no longer in the stream.

        In Redis 7 and later, XCLAIM does that. Redis 6.2 would list the id as pending forever.
        """
        with translated_errors():
            if not self._client.xrange(self.stream, id, id):
                self._client.xack(self.stream, self.group, id)
                logger.warning("%s: entry %s was trimmed from the stream before it was processed", self.stream, id)

    def _run(self, command: Callable[[], T], *, if_missing: T) -> T:
        """Run a command. If the group does not exist, create it again and return `if_missing`."""
        try:
            with translated_errors():
                return command()
        except CommandRefused as refusal:
            if not refusal.message.startswith(GROUP_IS_MISSING):
                raise
        logger.warning(
            "%s: the consumer group %s does not exist any more; creating it again, from the beginning of the stream",
            self.stream,
            self.group,
        )
        self.create()
        return if_missing


def milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
