"""Enqueue a message at once, although `outbox.transactional` may have changed the broker.

The outbox's own messages must not be stored as jobs: wake-ups, the messages that deliver jobs, and those that deliver
events to actors. A job's message is special in another way: the middleware's `before_enqueue` has run when it was
stored, in the context of the caller, and must not run again.

For this, `emit_before` and `emit_after` of the broker object are wrapped (`install_hooks`): through them, the broker
calls its middleware (Dramatiq says that it emits a signal). The wrappers know, for each thread, whether a signal is
being handled, and whether a stored message is being enqueued.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import dramatiq

# What is set on a broker object, by this module and by `outbox.transactional`.
HOOKS = ("enqueue", "emit_before", "emit_after")


class _ThreadState(threading.local):
    # How many signals this thread is handling: one may cause another.
    signals = 0
    # Whether this thread is enqueueing a message that was stored as a job.
    is_enqueueing_stored = False


_state = _ThreadState()


def enqueue_now(broker: Any, message: dramatiq.Message[Any], *, is_stored: bool = False) -> None:
    """Enqueue the message without storing it. `is_stored`: it is a job, for which `before_enqueue` has run."""
    enqueue = getattr(broker.enqueue, "enqueue_now", broker.enqueue)
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
    """Return whether this thread runs a method of middleware: what that enqueues must not be stored."""
    return _state.signals > 0


def is_enqueueing_stored() -> bool:
    """Return whether this thread is enqueueing a message that was stored as a job."""
    return _state.is_enqueueing_stored


def install_hooks(broker: Any) -> None:
    """Wrap the two methods of the broker that call its middleware. A second call does nothing."""
    if "emit_before" not in vars(broker):
        broker.emit_before = _wrapped(broker.emit_before, is_before=True)
        broker.emit_after = _wrapped(broker.emit_after, is_before=False)


def remove_hooks(copied: Any) -> None:
    """Remove everything from the copy of a broker that would call the broker that it was copied from."""
    for name in HOOKS:
        vars(copied).pop(name, None)


def _wrapped(emit: Callable[..., None], *, is_before: bool) -> Callable[..., None]:
    @functools.wraps(emit)
    def emit_signal(signal: str, *args: Any, **kwargs: Any) -> None:
        if is_before and signal == "enqueue" and _state.is_enqueueing_stored:
            return
        # A worker begins its next message outside any signal. If a time limit had interrupted the thread between two
        # lines of this function, a signal of the message before would count as being handled for ever.
        signals = 0 if is_before and signal == "process_message" else _state.signals
        # Middleware may send a message of its own meanwhile, for which `before_enqueue` has not run.
        is_enqueueing_stored, _state.is_enqueueing_stored = _state.is_enqueueing_stored, False
        try:
            _state.signals = signals + 1
            emit(signal, *args, **kwargs)
        finally:
            _state.signals = signals
            _state.is_enqueueing_stored = is_enqueueing_stored

    return emit_signal
