"""Keep pika's log lines about the outbox's own connections at DEBUG. pika is an optional dependency.

While a server is down, pika logs five errors for each attempt to connect, and it logs "aborted" when a connection is
closed as it should be. What matters of that is in the errors of destinations and consumers, which are logged once.
Lines about the application's own connections are logged as usual.
"""

from __future__ import annotations

import logging
import sys
import threading

THREAD_PREFIX = "outbox-rabbit-"


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record. It comes from the thread that calls this."""
        if record.levelno <= logging.DEBUG or not threading.current_thread().name.startswith(THREAD_PREFIX):
            return True
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


_FILTER = _Filter()


def quiet() -> None:
    """Set that up. pika has a logger for each of its modules; a filter of a logger does not apply to those below it."""
    for name in list(sys.modules):  # a copy: another thread may import something
        if name.partition(".")[0] == "pika":
            logging.getLogger(name).addFilter(_FILTER)  # once: a filter that it has is not added again
