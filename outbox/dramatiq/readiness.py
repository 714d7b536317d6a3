"""What must be in place before a worker starts."""

from __future__ import annotations

import logging
import sys

import dramatiq
import peewee
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.core import Outbox
from outbox.errors import RegistrationError, SettingsError

logger = logging.getLogger("outbox")


def check_ready(broker: dramatiq.Broker) -> None:
    """Raise an OutboxError that says what is missing, and what to do about it."""
    box = outbox.current()
    if isinstance(broker, StubBroker) and under_dramatiq_cli():
        raise SettingsError(
            "OUTBOX_REDIS_URL is not set, so these workers would hear nothing from other processes. "
            "Set it, or run everything in one process: outbox up your.module"
        )
    check_registered(box)
    try:
        box.check_schema()
    except peewee.PeeweeException as error:
        # It may be starting as well. Until it answers, drains fail and the sweeps go on.
        logger.warning("the database can't be used yet: %s", str(error).strip())


def check_registered(box: Outbox) -> None:
    if box.registry.is_empty:
        raise RegistrationError(
            "no handler is registered, and no other destination, so a worker would have nothing to deliver to. Name "
            "the module that holds your @outbox.handler functions: `dramatiq jobs your.module`, or "
            "`outbox up your.module`. Or set OUTBOX_WEBHOOK_URL or OUTBOX_STREAM."
        )


def under_dramatiq_cli() -> bool:
    return "dramatiq.cli" in sys.modules
