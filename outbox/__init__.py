"""A transactional outbox for applications that use Peewee and Dramatiq.

    import outbox

    with db.atomic():
        user = User.create(email=email)
        outbox.emit("User", user.id, "user.created", {"email": email})

The functions here use the current `Outbox`, which `configure` makes. Without `configure` it is made from the
environment; without OUTBOX_DATABASE_URL it uses an SQLite file in the working directory.

This module is a façade: it imports the module that a name comes from when the name is first used. No module of the
package imports a name from here; each imports it from where it is defined.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from outbox.version import __version__ as __version__

if TYPE_CHECKING:
    from outbox import inbox, testing, webhooks
    from outbox.buses.bus import Bus
    from outbox.buses.kafka import Kafka
    from outbox.buses.nats import Nats
    from outbox.buses.rabbit import Rabbit
    from outbox.consumer.consumer import Consumer
    from outbox.core import Outbox
    from outbox.current_outbox import (
        acancel,
        add_destination,
        aemit,
        aemit_many,
        cancel,
        cleanup_delivered_events,
        configure,
        create_tables,
        current,
        decrypted,
        emit,
        emit_many,
        event,
        handler,
        ignore,
        loaded_settings,
        on_failure,
        process_pending_events,
        redact,
        retire,
        retry_failed_events,
        upcaster,
        using,
    )
    from outbox.destinations.backoff import Backoff
    from outbox.destinations.failure import Failure
    from outbox.destinations.limits import Limits
    from outbox.destinations.outcome import Delivered, Failed, Outcome, Retry
    from outbox.destinations.periodic_job import Run
    from outbox.destinations.protocol import Destination, Lease
    from outbox.destinations.registry import Registry
    from outbox.destinations.stream import RedisStream
    from outbox.dramatiq.send import asend, asend_with_options, send, send_with_options
    from outbox.dramatiq.transactional import transactional
    from outbox.errors import (
        AsyncRequired,
        DecryptionError,
        DuplicateEvent,
        EncryptionKeyMissing,
        EventNotStored,
        InvalidEvent,
        InvalidMessage,
        NewerEvent,
        OutboxError,
        RegistrationError,
        Reject,
        RetryLater,
        SchemaError,
        SettingsError,
        TenantMismatch,
        TransactionOpen,
        TransactionRequired,
        Unavailable,
        UnreadableEvent,
    )
    from outbox.events.context import context
    from outbox.events.event import Event
    from outbox.events.new_event import UNIQUE, NewEvent
    from outbox.scheduler.periodic import periodic
    from outbox.settings import Settings
    from outbox.storage.models import InboxMessage, OutboxEvent
    from outbox.webhooks.webhook import Webhook

__all__ = [
    "UNIQUE",
    "AsyncRequired",
    "Backoff",
    "Bus",
    "Consumer",
    "DecryptionError",
    "Delivered",
    "Destination",
    "DuplicateEvent",
    "EncryptionKeyMissing",
    "Event",
    "EventNotStored",
    "Failed",
    "Failure",
    "InboxMessage",
    "InvalidEvent",
    "InvalidMessage",
    "Kafka",
    "Lease",
    "Limits",
    "Nats",
    "NewEvent",
    "NewerEvent",
    "Outbox",
    "OutboxError",
    "OutboxEvent",
    "Outcome",
    "Rabbit",
    "RedisStream",
    "RegistrationError",
    "Registry",
    "Reject",
    "Retry",
    "RetryLater",
    "Run",
    "SchemaError",
    "Settings",
    "SettingsError",
    "TenantMismatch",
    "TransactionOpen",
    "TransactionRequired",
    "Unavailable",
    "UnreadableEvent",
    "Webhook",
    "acancel",
    "add_destination",
    "aemit",
    "aemit_many",
    "asend",
    "asend_with_options",
    "cancel",
    "cleanup_delivered_events",
    "configure",
    "context",
    "create_tables",
    "current",
    "decrypted",
    "emit",
    "emit_many",
    "event",
    "handler",
    "ignore",
    "inbox",
    "loaded_settings",
    "on_failure",
    "periodic",
    "process_pending_events",
    "redact",
    "retire",
    "retry_failed_events",
    "send",
    "send_with_options",
    "testing",
    "transactional",
    "upcaster",
    "using",
    "webhooks",
]

# Where each name is defined.
_HOMES = {
    "outbox.buses.bus": "Bus",
    "outbox.buses.kafka": "Kafka",
    "outbox.buses.nats": "Nats",
    "outbox.buses.rabbit": "Rabbit",
    "outbox.consumer.consumer": "Consumer",
    "outbox.core": "Outbox",
    "outbox.current_outbox": (
        "acancel add_destination aemit aemit_many cancel cleanup_delivered_events configure create_tables current "
        "decrypted emit emit_many event handler ignore loaded_settings on_failure process_pending_events redact "
        "retire retry_failed_events upcaster using"
    ),
    "outbox.destinations.backoff": "Backoff",
    "outbox.destinations.failure": "Failure",
    "outbox.destinations.limits": "Limits",
    "outbox.destinations.outcome": "Delivered Failed Outcome Retry",
    "outbox.destinations.periodic_job": "Run",
    "outbox.destinations.protocol": "Destination Lease",
    "outbox.destinations.registry": "Registry",
    "outbox.destinations.stream": "RedisStream",
    "outbox.dramatiq.send": "asend asend_with_options send send_with_options",
    "outbox.dramatiq.transactional": "transactional",
    "outbox.errors": (
        "AsyncRequired DecryptionError DuplicateEvent EncryptionKeyMissing EventNotStored InvalidEvent InvalidMessage "
        "NewerEvent OutboxError RegistrationError Reject RetryLater SchemaError SettingsError TenantMismatch "
        "TransactionOpen TransactionRequired Unavailable UnreadableEvent"
    ),
    "outbox.events.context": "context",
    "outbox.events.new_event": "UNIQUE NewEvent",
    "outbox.events.event": "Event",
    "outbox.scheduler.periodic": "periodic",
    "outbox.settings": "Settings",
    "outbox.storage.models": "InboxMessage OutboxEvent",
    "outbox.webhooks.webhook": "Webhook",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_SUBPACKAGES = ("inbox", "testing", "webhooks")


if not TYPE_CHECKING:  # a type checker reads the imports above, and refuses a name that is not there

    def __getattr__(name: str) -> object:
        if name in _SUBPACKAGES:
            return import_module(f"outbox.{name}")
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
