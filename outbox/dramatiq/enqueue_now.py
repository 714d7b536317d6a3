"""Enqueue a message immediately, even on a broker that `outbox.transactional` has changed.

Messages that the outbox itself sends must not be stored as jobs: wake-ups, messages that deliver a job, and messages
that deliver an event to an actor. When a job was stored, `before_enqueue` of the broker's middleware has run, in the
process and the context of the caller. It must not run again when the message is enqueued.

`install_hooks` wraps `broker.emit_before` and `broker.emit_after`, the methods through which a Dramatiq broker calls
its middleware (Dramatiq says: it emits a signal). The wrappers record, for each thread, whether middleware is running,
and skip `before_enqueue` for a message that was stored.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import dramatiq

# The methods that this module and `outbox.transactional` replace on a broker object.
HOOKS = ("enqueue", "emit_before", "emit_after")


class _ThreadState(threading.local):
    # How many signals this thread is handling: middleware may enqueue a message, which is another signal.
    signals = 0
    # Whether this thread is enqueueing a message that was stored as a job.
    is_enqueueing_stored = False


_state = _ThreadState()


def enqueue_now(broker: Any, message: dramatiq.Message[Any], *, is_stored: bool = False) -> None:
    """Enqueue the message without storing it. `is_stored`: it was stored as a job, so `before_enqueue` is skipped."""
    # On a transactional broker, the attribute `original` is the method that `transactional` has replaced.
    enqueue = getattr(broker.enqueue, "original", broker.enqueue)
    if not is_stored:
        enqueue(message)
        return
    install_hooks(broker)
    _state.is_enqueueing_stored = True
    try:
        enqueue(message)
    finally:
        _state.is_enqueueing_stored = False


def is_handling_signal() -> bool:
    """Return whether middleware is running in this thread. Messages that it enqueues must not be stored."""
    return _state.signals > 0


def is_enqueueing_stored() -> bool:
    """Return whether this thread is enqueueing a message that was stored as a job."""
    return _state.is_enqueueing_stored


def install_hooks(broker: Any) -> None:
    """Wrap the two methods of the broker that call its middleware. A second call does nothing."""
    if "emit_before" not in vars(broker):
        broker.emit_before = _wrapped(broker.emit_before, is_before=True)
        broker.emit_after = _wrapped(broker.emit_after, is_before=False)


def remove_hooks(broker_copy: Any) -> None:
    """Remove what was replaced from a copy of a broker: `copy.copy` copies it, and it still calls the original."""
    for name in HOOKS:
        vars(broker_copy).pop(name, None)


def _wrapped(emit: Callable[..., None], *, is_before: bool) -> Callable[..., None]:
    @functools.wraps(emit)
    def emit_signal(signal: str, *args: Any, **kwargs: Any) -> None:
        if is_before and signal == "enqueue" and _state.is_enqueueing_stored:
            return
        # A worker begins its next message outside any signal. If a time limit had interrupted the thread between two
        # lines of this function, a signal of the message before would count as being handled for ever.
        signals = 0 if is_before and signal == "process_message" else _state.signals
        # Middleware may enqueue another message, which does need `before_enqueue`: reset the flag while it runs.
        is_enqueueing_stored, _state.is_enqueueing_stored = _state.is_enqueueing_stored, False
        try:
            _state.signals = signals + 1
            emit(signal, *args, **kwargs)
        finally:
            _state.signals = signals
            _state.is_enqueueing_stored = is_enqueueing_stored

    return emit_signal
