"""Keep the states of throttles in Redis, for all workers of a deployment.

Decisions are made in Python. Redis only compares and sets: if another worker has changed the state since it was read,
nothing is written, and the worker decides again. Redis is also the clock, so that hosts whose clocks differ agree. If
Redis's clock is set back, a state that was written before is read as if it had been written just now.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

from outbox.throttle.shared_state import Decide, T, ThrottleState

# Writes the new state if the old one is still there; returns whether it was, the state that was there, and the time.
COMPARE_AND_SET = """
local now = redis.call('TIME')
local found = redis.call('GET', KEYS[1]) or ''
if found ~= ARGV[1] then return {0, found, now[1], now[2]} end
if ARGV[2] ~= found then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return {1, found, now[1], now[2]}
"""
KEPT_MILLISECONDS = 24 * 3600 * 1000
# Equals no state, so that the first exchange only reads.
NEVER_READ = "?"
# An update gives up after this long if other workers change the state before each of its writes. This is a time and not
# a number of tries, because on a busy host an update may need many tries.
CONFLICT_SECONDS = 1.0


class RedisStore:
    """Keeps the states that all processes with the same Redis, namespace and queue share."""

    def __init__(self, client: Any, prefix: str, *, conflict_seconds: float = CONFLICT_SECONDS) -> None:
        self._prefix = prefix
        self._conflict_seconds = conflict_seconds
        self._compare_and_set = client.register_script(COMPARE_AND_SET)
        # What was read or written last, by name: the text, the state in it, Redis's time, and this process's monotonic
        # time. With it, an update usually needs a single round trip.
        self._last: dict[str, tuple[str, ThrottleState, float, float]] = {}
        # One thread at a time updates a name. Otherwise the threads would make each other's writes fail.
        self._locks: dict[str, threading.Lock] = {}

    def update(self, name: str, decide: Decide[T]) -> T:
        with self._locks.setdefault(name, threading.Lock()):
            return self._update(name, decide)

    def _update(self, name: str, decide: Decide[T]) -> T:
        if name not in self._last:
            self._exchange(name, NEVER_READ, "", ThrottleState())
        ends_at = time.monotonic() + self._conflict_seconds
        while True:
            before, state, redis_time, read_at = self._last[name]
            now = redis_time + time.monotonic() - read_at
            after, result = decide(state.corrected_for_clock(now), now)
            if after != state:
                after = replace(after, written_at=now)
            text = before if after == state else after.to_json()
            if self._exchange(name, before, text, after):
                return result
            if time.monotonic() >= ends_at:
                raise TimeoutError(f"other workers kept changing the state of {name!r}")

    def _exchange(self, name: str, before: str, after: str, state: ThrottleState) -> bool:
        """Replace the text `before` in Redis by `after`, which is the text of `state`.

        If another text is in Redis, replace nothing and return False. In both cases, remember what Redis now holds.
        """
        keys, args = [self._prefix + name], [before.encode("latin-1"), after.encode("latin-1"), KEPT_MILLISECONDS]
        done, found, seconds, micros = self._compare_and_set(keys=keys, args=args)
        text = after
        if not done:
            text = found.decode("latin-1")  # keeps any bytes as they are, for the comparison in the next exchange
            state = _parse(text)
        self._last[name] = (text, state, int(seconds) + int(micros) / 1e6, time.monotonic())
        return bool(done)

    release = update


def _parse(text: str) -> ThrottleState:
    """Return the state in a text from Redis; an empty state if the text is invalid."""
    try:
        return ThrottleState.from_json(text)
    except (ValueError, TypeError, AttributeError):
        return ThrottleState()
