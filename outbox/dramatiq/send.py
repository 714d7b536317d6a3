"""send: store a Dramatiq message in the caller's transaction. It is enqueued if and only if the transaction commits.

The message is stored whole, as a job (`job.py`). After the commit an outbox worker enqueues it on the actor's broker
(`job_destination.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import dramatiq
import dramatiq.broker

from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.dramatiq.broker_kind import describe_broker
from outbox.dramatiq.broker_origin import is_named_by_settings
from outbox.dramatiq.job import BrokerRole, broker_headers, draft_of, message_of_row
from outbox.dramatiq.known_brokers import is_known
from outbox.errors import InvalidEvent, SettingsError
from outbox.events.new_event import OnDuplicate
from outbox.events.validate import due_time
from outbox.storage.async_database import run_on
from outbox.storage.dialect import AT_ONCE
from outbox.storage.ids import uuid7

P = ParamSpec("P")
R = TypeVar("R")


def send(actor: dramatiq.Actor[P, R], /, *args: P.args, **kwargs: P.kwargs) -> dramatiq.Message[R]:
    """Send a message to an actor if, and only if, the caller's transaction commits; return the message.

    - `actor`: the Dramatiq actor.
    - `args`, `kwargs`: the arguments of the actor, as for `actor.send`.
    """
    return send_with_options(actor, args=args, kwargs=kwargs)


def send_with_options(
    actor: dramatiq.Actor[Any, R],
    /,
    *,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    delay: timedelta | int | None = None,
    idempotency_key: str | None = None,
    on_duplicate: OnDuplicate = "raise",
    subject: str | None = None,
    **options: Any,
) -> dramatiq.Message[R]:
    """Send a message with options if, and only if, the caller's transaction commits; return the message.

    - `actor`: the Dramatiq actor.
    - `args`, `kwargs`: the arguments of the actor.
    - `delay`: enqueue the message this much later: a timedelta, or milliseconds, as in Dramatiq.
    - `idempotency_key`: a job of this actor with this key can be sent once, for as long as its row is kept.
    - `on_duplicate`: what to do if a job with this actor and key exists. "raise" raises DuplicateEvent, and the
      transaction can continue; "ignore" returns the existing message; "replace" gives the existing job the new content
      and due time if it was never attempted, and otherwise stores a new job and frees the key of the old one.
    - `subject`: whom the arguments are about, such as "user:7": `outbox erase --subject user:7` erases them.
    - `options`: options for Dramatiq's middleware, such as `max_retries`.
    """
    actor = getattr(actor, "__actor__", actor)  # a class-based actor
    if not isinstance(actor, dramatiq.Actor):
        raise InvalidEvent(f"{actor!r} is not an actor: decorate the function with @dramatiq.actor.")
    if not is_known(actor.broker):
        raise SettingsError(
            f"The broker of the actor {actor.actor_name} is not Dramatiq's global broker, so outbox workers could not "
            "find it. Pass it to outbox.transactional(broker, databases=[db]), in a module that the workers import."
        )
    id = uuid7()
    message = _message(actor, str(id), tuple(args), dict(kwargs or {}), options)
    return _store(
        current(),
        actor.broker,
        message,
        id=id,
        delay=delay,
        idempotency_key=idempotency_key,
        on_duplicate=on_duplicate,
        subject=subject,
    )


async def asend(actor: dramatiq.Actor[P, R], /, *args: P.args, **kwargs: P.kwargs) -> dramatiq.Message[R]:
    """Do what `send` does, on an asynchronous database (`playhouse.pwasyncio`)."""
    return await run_on(current().application_database, "asend", send, actor, *args, **kwargs)


async def asend_with_options(
    actor: dramatiq.Actor[Any, R],
    /,
    *,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    delay: timedelta | int | None = None,
    idempotency_key: str | None = None,
    on_duplicate: OnDuplicate = "raise",
    subject: str | None = None,
    **options: Any,
) -> dramatiq.Message[R]:
    """Do what `send_with_options` does, on an asynchronous database (`playhouse.pwasyncio`)."""
    given: dict[str, Any] = {
        "args": args,
        "kwargs": kwargs,
        "delay": delay,
        "idempotency_key": idempotency_key,
        "on_duplicate": on_duplicate,
        "subject": subject,
        **options,
    }
    database = current().application_database
    return await run_on(database, "asend_with_options", send_with_options, actor, **given)


def _message(
    actor: dramatiq.Actor[Any, R], id: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
) -> dramatiq.Message[R]:
    """Return the message with this id.

    Without options, the message is made here: `Actor.message_with_options` would draw another id from the operating
    system's random numbers first, which takes a twentieth of the time of a send.
    """
    if options or type(actor).message_with_options is not dramatiq.Actor.message_with_options:
        return actor.message_with_options(args=args, kwargs=kwargs, **options).copy(message_id=id)
    return dramatiq.Message(actor.queue_name, actor.actor_name, args, kwargs, options, message_id=id)


def store_message(
    box: Outbox,
    broker: dramatiq.Broker,
    message: dramatiq.Message[R],
    *,
    id: UUID | None = None,
    delay: timedelta | int | None = None,
    idempotency_key: str | None = None,
    on_duplicate: OnDuplicate = "raise",
    caller: str = "outbox.send",
) -> dramatiq.Message[R]:
    """Store a copy of a message as a job; return it, or the message of the job that has the same key already."""
    # A copy: middleware may change the options, which belong to the caller.
    return _store(
        box,
        broker,
        message.copy(),
        id=uuid7() if id is None else id,
        delay=delay,
        idempotency_key=idempotency_key,
        on_duplicate=on_duplicate,
        caller=caller,
    )


def _store(
    box: Outbox,
    broker: dramatiq.Broker,
    message: dramatiq.Message[R],
    *,
    id: UUID,
    delay: timedelta | int | None,
    idempotency_key: str | None,
    on_duplicate: OnDuplicate,
    subject: str | None = None,
    caller: str = "outbox.send",
) -> dramatiq.Message[R]:
    """Store a message as a job; return it, or the message of the job that has the same key already.

    The middleware's `before_enqueue` runs here, in the context of the caller: it may add the tenant or the trace to the
    message's options.
    """
    if isinstance(delay, int):
        delay = timedelta(milliseconds=delay)
    due = AT_ONCE if delay is None else due_time(delay, "delay")
    broker.emit_before("enqueue", message, None if delay is None else int(delay.total_seconds() * 1000))
    draft = draft_of(
        message,
        id,
        box.settings,
        broker=_broker_headers(broker, box),
        key=idempotency_key,
        subject=subject,
        due=due,
    )
    stored = box.emitter.store(draft, on_duplicate, caller=caller)
    return message_of_row(box.decrypted(stored)) if on_duplicate == "ignore" and stored.id is not draft.id else message


def _broker_headers(broker: dramatiq.Broker, box: Outbox) -> dict[str, str] | None:
    """Return the headers from which a worker knows which of its brokers is this one."""
    if broker is not dramatiq.broker.global_broker:
        return broker_headers(BrokerRole.OTHER, describe_broker(broker))
    if is_named_by_settings(broker, box.settings):
        return None
    return broker_headers(BrokerRole.OWN, describe_broker(broker))
