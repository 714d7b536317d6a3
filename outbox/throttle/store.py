"""Where gates keep their states: in this process, or in Redis for all workers of a deployment.

Decisions are made in Python, by functions from a state to a state. Redis only compares and sets: whoever was overtaken
decides again. Redis is also the clock, so that hosts whose clocks differ agree; should it be set back, a state that was
written before that is read as if it had been written just now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from outbox.throttle.state import State

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
# Whoever is overtaken for this long, time and again, does without. On a busy host that takes many tries.
OVERTAKEN_SECONDS = 1.0
# After Redis has failed, nobody waits for it again for this long.
PAUSE_SECONDS = 5.0
# What is given back while Redis is away is kept for later; more than this comes back by itself, when its time is up.
MOST_UNRELEASED = 1_000


class Store(Protocol):
    def update(self, name: str, decide: Decide[T]) -> T:
        """Replace the state by what `decide` makes of it, and answer what it says besides."""
        ...

    def release(self, name: str, decide: Decide[None]) -> None:
        """The same for what gives something back: it must not get lost, and may come late."""
        ...


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

    release = update


class RedisStore:
    """For all processes with the same Redis, namespace and queue."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._prefix = prefix
        self._compare_and_set = client.register_script(COMPARE_AND_SET)
        # What was there last, so that usually a single round trip is enough: the text and what it says, Redis's time,
        # and ours.
        self._seen: dict[str, tuple[str, State, float, float]] = {}
        # This process's threads take turns: else they overtake each other all the time.
        self._locks: dict[str, threading.Lock] = {}

    def update(self, name: str, decide: Decide[T]) -> T:
        with self._locks.setdefault(name, threading.Lock()):
            return self._update(name, decide)

    def _update(self, name: str, decide: Decide[T]) -> T:
        if name not in self._seen:
            self._exchange(name, NEVER_SEEN, "", State())
        ends_at = time.monotonic() + OVERTAKEN_SECONDS
        while True:
            before, state, read, read_at = self._seen[name]
            now = read + time.monotonic() - read_at
            after, answer = decide(state.by_clock(now), now)
            if after != state:
                after = replace(after, written_at=now)
            text = before if after == state else after.to_json()
            if self._exchange(name, before, text, after):
                return answer
            if time.monotonic() >= ends_at:
                raise TimeoutError(f"the state of {name!r} changes all the time")

    def _exchange(self, name: str, before: str, after: str, state: State) -> bool:
        """Whether what was there is replaced by `after`, the text of `state`; remembers what is there now."""
        keys, args = [self._prefix + name], [before.encode("latin-1"), after.encode("latin-1"), KEPT_MILLISECONDS]
        done, found, seconds, micros = self._compare_and_set(keys=keys, args=args)
        text = after
        if not done:
            text = found.decode("latin-1")  # of garbage too: it is compared, to the byte
            state = _read(text)
        self._seen[name] = (text, state, int(seconds) + int(micros) / 1e6, time.monotonic())
        return bool(done)

    release = update


def _read(text: str) -> State:
    """What somebody else has put there is as good as nothing."""
    try:
        return State.from_json(text)
    except (ValueError, TypeError, AttributeError):
        return State()


class FallbackStore:
    """Redis where it can be reached; without it each process keeps to the limits by itself."""

    def __init__(self, shared: Store) -> None:
        self._shared = shared
        self._local = LocalStore()
        self._failed_at: float | None = None
        self._unreleased: deque[tuple[str, Decide[None]]] = deque(maxlen=MOST_UNRELEASED)

    def update(self, name: str, decide: Decide[T]) -> T:
        if self._is_pausing:
            return self._local.update(name, decide)
        try:
            self._catch_up()
            answer = self._shared.update(name, decide)
        except Exception as error:
            self._note_failure(error)
            return self._local.update(name, decide)
        self._note_success()
        return answer

    def release(self, name: str, decide: Decide[None]) -> None:
        """On both sides: whatever it is that is given back was taken on one of them, perhaps before things changed."""
        self._local.update(name, decide)
        self._unreleased.append((name, decide))
        if self._is_pausing:
            return
        try:
            self._catch_up()
        except Exception as error:
            self._note_failure(error)
        else:
            self._note_success()

    def _catch_up(self) -> None:
        while self._unreleased:
            try:
                name, decide = self._unreleased.popleft()
            except IndexError:
                return  # another thread was quicker
            try:
                self._shared.update(name, decide)
            except Exception:
                self._unreleased.appendleft((name, decide))
                raise

    @property
    def _is_pausing(self) -> bool:
        return self._failed_at is not None and time.monotonic() - self._failed_at < PAUSE_SECONDS

    def _note_failure(self, error: Exception) -> None:
        if self._failed_at is None:
            logger.warning("breakers and limits are this process's own while Redis can't be used: %s", error)
        self._failed_at = time.monotonic()

    def _note_success(self) -> None:
        if self._failed_at is not None:
            logger.info("breakers and limits are shared again")
            self._failed_at = None
