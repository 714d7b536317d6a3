"""Flags that keep wake-ups few: a flag is up while a wake-up is on its way.

A flag also counts the messages that were sent since a worker last answered one. While a hundred are unanswered, and at
least as many wait in the queue, one more says nothing: they will be answered after this commit. So workers that were
dead for a night find no pile. Messages of other actors in the same queue don't count, but for the broker that can't
tell them apart. (A limit by age would go by the hosts' clocks, which may differ.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

FLAG_MILLISECONDS = 1_000
ENOUGH_WAITING = 100
# The count of unanswered messages is forgotten after so long without one, whatever has become of them.
FORGET_SECONDS = 3_600

# Brokers without a flag: the least time between two wake-ups of a process, and while enough are waiting.
INTERVAL_SECONDS = 0.05
SLOW_INTERVAL_SECONDS = 5.0

# Both in one round trip, with KEYS flag, queue, unanswered; ARGV enough, seconds, milliseconds.
ENOUGH = """
local unanswered = tonumber(redis.call('GET', KEYS[3]) or '0')
if unanswered >= tonumber(ARGV[1]) and redis.call('LLEN', KEYS[2]) >= tonumber(ARGV[1]) then return 0 end
"""
COUNT = """
redis.call('INCR', KEYS[3])
redis.call('EXPIRE', KEYS[3], ARGV[2])
return 1
"""
# While enough are unanswered the flag need not go up: nobody is to send one.
PUT_UP = f"{ENOUGH}if not redis.call('SET', KEYS[1], 1, 'NX', 'PX', ARGV[3]) then return 0 end{COUNT}"
ADMIT = f"{ENOUGH}{COUNT}"


class Flag(Protocol):
    """Says whether a message should be sent."""

    def put_up(self) -> bool:
        """Return whether to send a wake-up: none is on its way, and not enough are unanswered."""

    def take_down(self) -> None:
        """Note that a worker answers now, or that the wake-up could not be sent."""

    def admit(self) -> bool:
        """Return whether to send a message that does not depend on the flag: a sweep, or a clean-up."""

    def unanswered(self) -> int:
        """Return how many messages were sent and, as far as this broker tells, not taken by a worker yet."""


class RedisFlag:
    """Shared by all processes with the same Redis and queue."""

    def __init__(self, client: Any, queue_key: str) -> None:
        self._client = client
        self._keys = (f"{queue_key}.flag", queue_key, f"{queue_key}.unanswered")
        self._put_up = client.register_script(PUT_UP)
        self._admit = client.register_script(ADMIT)

    def put_up(self) -> bool:
        return bool(self._put_up(self._keys, (ENOUGH_WAITING, FORGET_SECONDS, FLAG_MILLISECONDS)))

    def take_down(self) -> None:
        flag, _, unanswered = self._keys
        self._client.delete(flag, unanswered)

    def admit(self) -> bool:
        return bool(self._admit(self._keys, (ENOUGH_WAITING, FORGET_SECONDS)))

    def unanswered(self) -> int:
        return int(self._client.get(self._keys[2]) or 0)


class LocalFlag:
    """Within one process. It needs no end of its own: a crash takes it along."""

    def __init__(self, waiting: Callable[[], int] = lambda: 0) -> None:
        self._lock = threading.Lock()
        self._waiting = waiting
        self._up = False
        self._unanswered = 0

    def put_up(self) -> bool:
        with self._lock:
            if self._up or self._are_enough():
                return False
            self._up = True
            self._unanswered += 1
            return True

    def take_down(self) -> None:
        with self._lock:
            self._up = False
            self._unanswered = 0

    def admit(self) -> bool:
        with self._lock:
            if self._are_enough():
                return False
            self._unanswered += 1
            return True

    def _are_enough(self) -> bool:
        return self._unanswered >= ENOUGH_WAITING and self._waiting() >= ENOUGH_WAITING

    def unanswered(self) -> int:
        return self._unanswered


class Interval:
    """For brokers between processes that keep no flag, RabbitMQ among them: wake-ups of a process keep a distance.

    A flag of this process would go up here and come down in the worker's process: it would stay up.
    """

    def __init__(
        self,
        waiting: Callable[[], int] = lambda: 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._lock = threading.Lock()
        self._waiting = waiting
        self._clock = clock
        self._sleep = sleep
        self._sent_at = float("-inf")

    def put_up(self) -> bool:
        """Wait until the interval is over, in the notifying thread: commits meanwhile share the next wake-up."""
        with self._lock:
            self._sleep(max(0.0, self._sent_at + INTERVAL_SECONDS - self._clock()))
            return self._has_room()

    def take_down(self) -> None:
        """Nothing is up."""

    def admit(self) -> bool:
        with self._lock:
            return self._has_room()

    def _has_room(self) -> bool:
        now = self._clock()
        if now - self._sent_at < SLOW_INTERVAL_SECONDS and self._waiting() >= ENOUGH_WAITING:
            return False
        self._sent_at = now
        return True

    def unanswered(self) -> int:
        return self._waiting()
