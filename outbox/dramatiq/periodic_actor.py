"""Recognise the actors among periodic jobs, and send them the messages of their runs."""

from __future__ import annotations

import inspect
from typing import Any
from uuid import UUID

import dramatiq

from outbox.dramatiq.send import send_with_options
from outbox.errors import RegistrationError


def actor_of(target: object) -> dramatiq.Actor[Any, Any] | None:
    """Return the actor that was declared as periodic, or None if it is no actor."""
    actor = getattr(target, "__actor__", target)  # a class-based actor
    return actor if isinstance(actor, dramatiq.Actor) else None


def check_takes_no_arguments(actor: dramatiq.Actor[Any, Any]) -> None:
    """Raise RegistrationError if the actor can't be called without arguments."""
    try:
        inspect.signature(actor.fn).bind()
    except TypeError:
        raise RegistrationError(
            f"The actor {actor.actor_name} can't be called without arguments, and a periodic job has none."
        ) from None


def store_run(actor: dramatiq.Actor[Any, Any], key: str) -> UUID:
    """Store a message to the actor in the transaction that is open; return the id of its row.

    If a message with this key exists, nothing is stored.
    """
    message = send_with_options(actor, idempotency_key=key, on_duplicate="ignore")
    return UUID(message.message_id)
