"""Keep the arguments of messages out of Dramatiq's own log.

When an actor raises an error, Dramatiq logs the message with all its arguments: `charge({'card': …})`. For an actor
that receives events, that is the whole event. At DEBUG each actor also logs its arguments when it is called. Outbox
workers log the actor's name and the message's id instead. In workers of its own, an application can ask for the same
with `hide_arguments_in_logs`.
"""

from __future__ import annotations

import logging
from typing import Any

import dramatiq
from dramatiq.broker import MessageProxy

# Dramatiq's loggers that are given messages have names that begin like this: those of the threads that run actors, and
# one for the consumer of each queue.
LOGGERS = "dramatiq.worker."
# What an actor logs when it is called.
CALL = "Received args=%r kwargs=%r."


def hide_arguments_in_logs(broker: dramatiq.Broker | None = None) -> None:
    """Let Dramatiq's log in this process name a message by its actor and id, without its arguments.

    Call it in a module that the workers import, after the actors are declared. It can be called more than once. The
    text of the error that an actor raises is logged as it is.

    - `broker`: also hide what its actors log at DEBUG when they are called.
    """
    # A filter of a logger does not apply to the loggers below it, and each new queue gets a logger for its consumer. So
    # the arguments are removed in the factory that makes all log records.
    made_by = logging.getLogRecordFactory()
    if not isinstance(made_by, RecordFactory):
        logging.setLogRecordFactory(RecordFactory(made_by))
    for actor in () if broker is None else broker.actors.values():
        if not any(isinstance(each, _WithoutArguments) for each in actor.logger.filters):
            actor.logger.addFilter(_WithoutArguments())


class RecordFactory:
    """Makes log records with another factory, and reduces messages in those of Dramatiq's workers to their ids."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, name: str | None, *args: Any, **more: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._inner(name, *args, **more)
        # logging.makeLogRecord, which makes a record of what another process has sent, passes None.
        if name is not None and name.startswith(LOGGERS) and isinstance(record.args, tuple):
            record.args = tuple(map(_without_arguments, record.args))
        return record


class _WithoutArguments(logging.Filter):
    """Replaces the arguments of a call by `…` in the log lines of an actor."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg == CALL:
            record.args = ("…", "…")
        return True


def _without_arguments(value: object) -> object:
    if isinstance(value, dramatiq.Message | MessageProxy):
        return f"{value.actor_name}(…) {value.message_id}"
    return value
