"""Keep the states of throttles in Redis, for all workers of a deployment.

Decisions are made in Python. Redis only compares and sets: a worker whose state is out of date decides again. Redis is
also the clock, so that hosts whose clocks differ agree. If that clock is set back, a state that was written before is
read as if it had been written just now.
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
# After this long an update gives up, if other workers have changed the state each time before it could write. On a busy
# host that takes many tries.
CONFLICT_SECONDS = 1.0


class RedisStore:
    """Keeps the states that all processes with the same Redis, namespace and queue share."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._prefix = prefix
        self._compare_and_set = client.register_script(COMPARE_AND_SET)
        # What was read or written last, so that usually a single round trip is enough: the text, the state in it,
        # Redis's time, and this process's monotonic time.
        self._last: dict[str, tuple[str, ThrottleState, float, float]] = {}
        # One update of a name at a time in this process: otherwise its threads would keep changing the state for each
        # other.
        self._locks: dict[str, threading.Lock] = {}

    def update(self, name: str, decide: Decide[T]) -> T:
        with self._locks.setdefault(name, threading.Lock()):
            return self._update(name, decide)

    def _update(self, name: str, decide: Decide[T]) -> T:
        if name not in self._last:
            self._exchange(name, NEVER_READ, "", ThrottleState())
        ends_at = time.monotonic() + CONFLICT_SECONDS
        while True:
            before, state, read, read_at = self._last[name]
            now = read + time.monotonic() - read_at
            after, result = decide(state.corrected_for_clock(now), now)
            if after != state:
                after = replace(after, written_at=now)
            text = before if after == state else after.to_json()
            if self._exchange(name, before, text, after):
                return result
            if time.monotonic() >= ends_at:
                raise TimeoutError(f"the state of {name!r} changes all the time")

    def _exchange(self, name: str, before: str, after: str, state: ThrottleState) -> bool:
        """Replace the text `before` by `after`, the text of `state`; remember what is there now.

        Returns False, and replaces nothing, if another text is there.
        """
        keys, args = [self._prefix + name], [before.encode("latin-1"), after.encode("latin-1"), KEPT_MILLISECONDS]
        done, found, seconds, micros = self._compare_and_set(keys=keys, args=args)
        text = after
        if not done:
            text = found.decode("latin-1")  # decodes any bytes: the next exchange compares them
            state = _parse(text)
        self._last[name] = (text, state, int(seconds) + int(micros) / 1e6, time.monotonic())
        return bool(done)

    release = update


def _parse(text: str) -> ThrottleState:
    """Return the state in a text from Redis; an empty state if the text is not one."""
    try:
        return ThrottleState.from_json(text)
    except (ValueError, TypeError, AttributeError):
        return ThrottleState()
