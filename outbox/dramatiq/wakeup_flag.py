"""The flag that limits wake-ups: it is set while a wake-up is on its way to a worker.

The flag also counts the messages that were sent since a worker last took one. While a hundred of them are unanswered,
and at least a hundred messages wait in the queue, no further one is sent: a worker will take one of those after this
commit. So workers that were down for a night find a hundred messages, not a million. Messages of other actors in the
same queue don't count, except on a broker that can't tell them apart. (The limit is not by age: ages would depend on
the clocks of hosts, which differ.)

There is one kind of flag for each kind of broker; `wakeup.flag_for` chooses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

FLAG_MILLISECONDS = 1_000
ENOUGH_WAITING = 100
# The count of unanswered messages expires after this long without a new one.
FORGET_SECONDS = 3_600

# For brokers without a flag: the least time between two wake-ups of a process, and the same while enough are waiting.
INTERVAL_SECONDS = 0.05
SLOW_INTERVAL_SECONDS = 5.0

# Each script is one round trip. KEYS: flag, queue, unanswered. ARGV: enough, seconds, milliseconds.
ENOUGH = """
local unanswered = tonumber(redis.call('GET', KEYS[3]) or '0')
if unanswered >= tonumber(ARGV[1]) and redis.call('LLEN', KEYS[2]) >= tonumber(ARGV[1]) then return 0 end
"""
COUNT = """
redis.call('INCR', KEYS[3])
redis.call('EXPIRE', KEYS[3], ARGV[2])
return 1
"""
# While enough messages are unanswered, the flag is not set: no process is to send one.
TRY_SET = f"{ENOUGH}if not redis.call('SET', KEYS[1], 1, 'NX', 'PX', ARGV[3]) then return 0 end{COUNT}"
MAY_SEND = f"{ENOUGH}{COUNT}"


class Flag(Protocol):
    """Decides whether a message to our actors should be sent."""

    def try_set(self) -> bool:
        """Set the flag. Return True if it was not set and too few messages are unanswered: then send a wake-up."""

    def clear(self) -> None:
        """Clear the flag and the count: a worker has taken a message, or the wake-up could not be sent."""

    def may_send(self) -> bool:
        """Return whether to send a sweep or a clean-up: they ignore the flag, but not the unanswered messages."""

    def unanswered(self) -> int:
        """Return how many messages were sent that, as far as this broker tells, no worker has taken yet."""


class RedisFlag:
    """A flag in Redis, shared by all processes with the same Redis and queue."""

    def __init__(self, client: Any, queue_key: str) -> None:
        self._client = client
        self._keys = (f"{queue_key}.flag", queue_key, f"{queue_key}.unanswered")
        self._try_set = client.register_script(TRY_SET)
        self._may_send = client.register_script(MAY_SEND)

    def try_set(self) -> bool:
        return bool(self._try_set(self._keys, (ENOUGH_WAITING, FORGET_SECONDS, FLAG_MILLISECONDS)))

    def clear(self) -> None:
        flag, _, unanswered = self._keys
        self._client.delete(flag, unanswered)

    def may_send(self) -> bool:
        return bool(self._may_send(self._keys, (ENOUGH_WAITING, FORGET_SECONDS)))

    def unanswered(self) -> int:
        return int(self._client.get(self._keys[2]) or 0)


class LocalFlag:
    """A flag within one process. It need not expire: it is gone when the process crashes."""

    def __init__(self, waiting: Callable[[], int] = lambda: 0) -> None:
        self._lock = threading.Lock()
        self._waiting = waiting
        self._up = False
        self._unanswered = 0

    def try_set(self) -> bool:
        with self._lock:
            if self._up or self._are_enough():
                return False
            self._up = True
            self._unanswered += 1
            return True

    def clear(self) -> None:
        with self._lock:
            self._up = False
            self._unanswered = 0

    def may_send(self) -> bool:
        with self._lock:
            if self._are_enough():
                return False
            self._unanswered += 1
            return True

    def _are_enough(self) -> bool:
        return self._unanswered >= ENOUGH_WAITING and self._waiting() >= ENOUGH_WAITING

    def unanswered(self) -> int:
        return self._unanswered


class MinimumInterval:
    """For brokers that can't hold a flag, such as RabbitMQ: a least time between two wake-ups of a process.

    A flag in the memory of this process would be set here and cleared in the worker's process, so it would stay set.
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

    def try_set(self) -> bool:
        """Wait in the notifier's thread until the interval is over: commits during the wait share the wake-up."""
        with self._lock:
            self._sleep(max(0.0, self._sent_at + INTERVAL_SECONDS - self._clock()))
            return self._has_room()

    def clear(self) -> None:
        """Do nothing: no flag is set."""

    def may_send(self) -> bool:
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
