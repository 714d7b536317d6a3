"""One connection of a process to a broker, which all threads share. It is opened when it is first needed.

A connection that has failed is discarded, and the next call opens a new one. A forked child opens a connection of its
own, and never closes its parent's: the two processes have the same socket.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

C = TypeVar("C")


class SharedConnection(Generic[C]):
    """Opens and closes the connection with the functions that it is given.

    `connect` gets how many seconds it may take, and raises an error if that is not enough.
    """

    def __init__(
        self, connect: Callable[[float], C], disconnect: Callable[[C], None], is_open: Callable[[C], bool]
    ) -> None:
        self._connect, self._disconnect, self._is_open = connect, disconnect, is_open
        self._reset()
        _connections.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._connection: C | None = None

    def get(self, ends_at: float) -> C:
        """Return the connection; open one if there is none, or if it has been closed. Raise an error by `ends_at`.

        Threads that need it meanwhile wait. An acquisition with a timeout would be unsafe: an interrupt that is raised
        in this thread could come between the acquisition and the `try`, and leave the lock acquired.
        """
        with self._lock:
            connection = self._connection
            if connection is not None and not self._is_open(connection):
                self._forget(connection)
                connection = None
            if connection is None:
                _close_at_exit()
                connection = self._connection = self._connect(max(0.0, ends_at - time.monotonic()))
            return connection

    def discard(self, connection: C) -> None:
        """Close a connection that has failed, unless another thread has done that."""
        with self._lock:
            if connection is self._connection:
                self._forget(connection)

    def close(self) -> None:
        """Close the connection, if there is one. The next `get` opens a new one."""
        with self._lock:
            if self._connection is not None:
                self._forget(self._connection)

    def _forget(self, connection: C) -> None:
        self._connection = None
        with contextlib.suppress(Exception):  # it may be broken, and is not used any more
            self._disconnect(connection)

    def leave_to_parent(self) -> None:
        """Start without a connection, in a forked child."""
        if self._connection is not None:
            # The object must never be deleted here, not even when the process ends: some libraries would then close the
            # parent's connection, or wait for threads that only the parent has (librdkafka).
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        self._reset()


_connections: weakref.WeakSet[SharedConnection[Any]] = weakref.WeakSet()
_registered: list[int] = []


def _close_at_exit() -> None:
    """Close all connections when this process ends: some brokers log a warning if a client just goes away."""
    if not _registered:
        _registered.append(os.getpid())
        atexit.register(_close_all)


def _close_all() -> None:
    for each in list(_connections):
        each.close()


def _after_fork_in_child() -> None:
    for each in list(_connections):
        each.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
