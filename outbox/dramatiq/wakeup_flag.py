"""The flag that limits wake-ups: it is set while a wake-up is on its way to a worker.

The flag also counts the unanswered messages: those that were sent since a worker last took one. While a hundred are
unanswered, and at least a hundred messages wait in the queue, no further message is sent. None is needed, because a
worker will take one of the waiting messages after the commit. So workers that were down for a night find a hundred
messages, not a million. Messages for other actors in the same queue don't count, except on a broker that can't tell
them apart. (The limit is not an age, because the clocks of hosts differ.)

On Redis no message is sent while a worker listens (`wakeup_listener`): setting the flag notifies that worker instead.

There is one class of flag for each kind of broker. `wakeup.flag_for` chooses the class.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

# The flag expires after this time.
FLAG_MILLISECONDS = 1_000
# The limit of unanswered and of waiting messages.
ENOUGH_WAITING = 100
# The count of unanswered messages expires if no message was sent for this time.
FORGET_SECONDS = 3_600

# For brokers without a flag: the shortest time between two wake-ups of a process, and the same while ENOUGH_WAITING
# messages wait in the queue.
INTERVAL_SECONDS = 0.05
SLOW_INTERVAL_SECONDS = 5.0

# Each script is one round trip to Redis. It returns 1 if the message may be sent, else 0.
# KEYS: the flag, the queue, the count of unanswered messages; for TRY_SET also the mark of a listening worker and the
# list from which it takes wake-ups.
# ARGV: ENOUGH_WAITING, FORGET_SECONDS, and for TRY_SET also FLAG_MILLISECONDS.
NOTIFY_LISTENER = """
if redis.call('GET', KEYS[4]) then
    if redis.call('LLEN', KEYS[5]) == 0 then redis.call('RPUSH', KEYS[5], 1) end
    return 0
end
"""
RETURN_IF_ENOUGH = """
local unanswered = tonumber(redis.call('GET', KEYS[3]) or '0')
if unanswered >= tonumber(ARGV[1]) and redis.call('LLEN', KEYS[2]) >= tonumber(ARGV[1]) then return 0 end
"""
COUNT_MESSAGE = """
redis.call('INCR', KEYS[3])
redis.call('EXPIRE', KEYS[3], ARGV[2])
return 1
"""
# While enough messages are unanswered, the flag is not set, because no message follows.
SET_FLAG = "if not redis.call('SET', KEYS[1], 1, 'NX', 'PX', ARGV[3]) then return 0 end"
TRY_SET = f"{NOTIFY_LISTENER}{RETURN_IF_ENOUGH}{SET_FLAG}{COUNT_MESSAGE}"
MAY_SEND = f"{RETURN_IF_ENOUGH}{COUNT_MESSAGE}"


def listening_key(queue_key: str) -> str:
    """Return the key that exists while a worker process takes wake-ups from the list (`wakeup_listener`)."""
    return f"{queue_key}.listening"


def wakeup_key(queue_key: str) -> str:
    """Return the key of that list. It has at most one element."""
    return f"{queue_key}.wakeup"


class Flag(Protocol):
    """Decides whether a process should send a message to the outbox's actors."""

    def try_set(self) -> bool:
        """Set the flag, and return True: the caller must send a wake-up.

        Return False if the flag was already set, if enough messages are unanswered, or if this has notified a listening
        worker: the caller must not send one.
        """

    def clear(self) -> None:
        """Clear the flag and the count. Called when a worker has taken a message, or a wake-up could not be sent."""

    def may_send(self) -> bool:
        """Return whether to send a sweep or a clean-up: yes, unless enough messages are unanswered.

        The flag does not matter for them.
        """

    def unanswered(self) -> int:
        """Return how many messages are unanswered, as far as this broker can tell."""


class RedisFlag:
    """A flag in Redis, shared by all processes with the same Redis and queue."""

    def __init__(self, client: Any, queue_key: str) -> None:
        self._client = client
        self._keys = (f"{queue_key}.flag", queue_key, f"{queue_key}.unanswered")
        self._listener_keys = (listening_key(queue_key), wakeup_key(queue_key))
        self._try_set = client.register_script(TRY_SET)
        self._may_send = client.register_script(MAY_SEND)

    def try_set(self) -> bool:
        keys = (*self._keys, *self._listener_keys)
        return bool(self._try_set(keys, (ENOUGH_WAITING, FORGET_SECONDS, FLAG_MILLISECONDS)))

    def clear(self) -> None:
        flag, _, unanswered = self._keys
        self._client.delete(flag, unanswered)

    def may_send(self) -> bool:
        return bool(self._may_send(self._keys, (ENOUGH_WAITING, FORGET_SECONDS)))

    def unanswered(self) -> int:
        return int(self._client.get(self._keys[2]) or 0)


class LocalFlag:
    """A flag in the memory of one process. It does not expire: if the process crashes, the flag is lost with it."""

    def __init__(self, count_waiting: Callable[[], int] = lambda: 0) -> None:
        self._lock = threading.Lock()
        self._count_waiting = count_waiting
        self._is_set = False
        self._unanswered = 0

    def try_set(self) -> bool:
        with self._lock:
            if self._is_set or self._are_enough_unanswered():
                return False
            self._is_set = True
            self._unanswered += 1
            return True

    def clear(self) -> None:
        with self._lock:
            self._is_set = False
            self._unanswered = 0

    def may_send(self) -> bool:
        with self._lock:
            if self._are_enough_unanswered():
                return False
            self._unanswered += 1
            return True

    def _are_enough_unanswered(self) -> bool:
        return self._unanswered >= ENOUGH_WAITING and self._count_waiting() >= ENOUGH_WAITING

    def unanswered(self) -> int:
        return self._unanswered


class MinimumInterval:
    """The shortest time between two wake-ups of a process, for brokers that can't store a flag, such as RabbitMQ.

    A flag in the memory of this process would not work: the worker, in another process, could not clear it.
    """

    def __init__(
        self,
        count_waiting: Callable[[], int] = lambda: 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._lock = threading.Lock()
        self._count_waiting = count_waiting
        self._clock = clock
        self._sleep = sleep
        self._sent_at = float("-inf")

    def try_set(self) -> bool:
        """Wait until the interval is over; then return whether to send a wake-up.

        The notifier's thread waits here. Commits during the wait share the wake-up.
        """
        with self._lock:
            self._sleep(max(0.0, self._sent_at + INTERVAL_SECONDS - self._clock()))
            return self._may_send_now()

    def clear(self) -> None:
        """Do nothing, because there is no flag."""

    def may_send(self) -> bool:
        with self._lock:
            return self._may_send_now()

    def _may_send_now(self) -> bool:
        """Return False if enough messages wait and the last one was sent shortly before; else note the time."""
        now = self._clock()
        if now - self._sent_at < SLOW_INTERVAL_SECONDS and self._count_waiting() >= ENOUGH_WAITING:
            return False
        self._sent_at = now
        return True

    def unanswered(self) -> int:
        return self._count_waiting()
