"""Where gates keep their states: in this process, or in Redis for all workers of a deployment.

Decisions are made in Python, by functions from a state to a state. Redis only compares and sets: whoever was overtaken
decides again. Redis is also the clock, so that hosts whose clocks differ agree.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from outbox.gates.state import State

logger = logging.getLogger("outbox")

T = TypeVar("T")
Decide = Callable[[State, float], tuple[State, T]]

# Answers the state and the time; writes the new state if the old one is still there.
COMPARE_AND_SET = """
local now = redis.call('TIME')
local found = redis.call('GET', KEYS[1]) or ''
if found ~= ARGV[1] then return {0, found, now[1], now[2]} end
if ARGV[2] ~= found then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return {1, found, now[1], now[2]}
"""
KEPT_MILLISECONDS = 24 * 3600 * 1000
NEVER_SEEN = "?"
# Whoever is overtaken this often in a row does without.
MOST_TRIES = 50
# After Redis has failed, nobody waits for it again for this long.
PAUSE_SECONDS = 5.0


class Store(Protocol):
    def update(self, name: str, decide: Decide[T]) -> T:
        """Replace the state by what `decide` makes of it, and answer what it says besides."""


class LocalStore:
    """For one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, State] = {}

    def update(self, name: str, decide: Decide[T]) -> T:
        with self._lock:
            self._states[name], answer = decide(self._states.get(name, State()), self._clock())
            return answer


class RedisStore:
    """For all processes with the same Redis, namespace and queue."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._prefix = prefix
        self._compare_and_set = client.register_script(COMPARE_AND_SET)
        # What was there last, so that usually a single round trip is enough: the text, Redis's time, and ours.
        self._seen: dict[str, tuple[str, float, float]] = {}

    def update(self, name: str, decide: Decide[T]) -> T:
        if name not in self._seen:
            self._exchange(name, NEVER_SEEN, "")
        for _ in range(MOST_TRIES):
            before, read, read_at = self._seen[name]
            state = State.from_json(before) if before else State()
            after, answer = decide(state, read + time.monotonic() - read_at)
            text = before if after == state else after.to_json()
            if self._exchange(name, before, text):
                return answer
        raise TimeoutError(f"the state of {name!r} changes all the time")

    def _exchange(self, name: str, before: str, after: str) -> bool:
        keys, args = [self._prefix + name], [before, after, KEPT_MILLISECONDS]
        done, found, seconds, micros = self._compare_and_set(keys=keys, args=args)
        text = after if done else found.decode()
        self._seen[name] = (text, int(seconds) + int(micros) / 1e6, time.monotonic())
        return bool(done)


class FallbackStore:
    """Redis where it can be reached; without it each process keeps to the limits by itself."""

    def __init__(self, shared: Store) -> None:
        self._shared = shared
        self._local = LocalStore()
        self._failed_at: float | None = None

    def update(self, name: str, decide: Decide[T]) -> T:
        if self._failed_at is not None and time.monotonic() - self._failed_at < PAUSE_SECONDS:
            return self._local.update(name, decide)
        try:
            answer = self._shared.update(name, decide)
        except Exception as error:
            if self._failed_at is None:
                logger.warning("breakers and limits are this process's own while Redis can't be used: %s", error)
            self._failed_at = time.monotonic()
            return self._local.update(name, decide)
        if self._failed_at is not None:
            logger.info("breakers and limits are shared again")
            self._failed_at = None
        return answer
