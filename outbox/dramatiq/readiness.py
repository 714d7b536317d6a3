"""What must be in place before a worker starts."""

from __future__ import annotations

import logging
import sys

import dramatiq
import dramatiq.broker
import peewee
from dramatiq.brokers.stub import StubBroker

from outbox.core import Outbox
from outbox.dramatiq.broker import check_agreement
from outbox.errors import SettingsError

logger = logging.getLogger("outbox")


def check_ready(box: Outbox, broker: dramatiq.Broker) -> None:
    """Raise an OutboxError that says what is missing, and what to do about it."""
    if under_dramatiq_cli() and isinstance(broker, StubBroker):
        raise SettingsError(
            "OUTBOX_REDIS_URL is not set, and no module named here sets a broker, so these workers would hear nothing "
            "from other processes. Set it, or name the module that sets your broker, `outbox worker your.broker "
            "your.module`, or run everything in one process: outbox up your.module"
        )
    if under_dramatiq_cli() and dramatiq.broker.global_broker is not broker:
        raise SettingsError(
            "dramatiq.set_broker was called after this worker had found its broker, so what is sent to the new one "
            "would not be heard. Name the module that sets it first, `dramatiq your.broker jobs your.module`, or run "
            "`outbox worker your.module`."
        )
    check_agreement(broker, box.settings)
    try:
        box.check_schema()
    except peewee.PeeweeException as error:
        # It may be starting as well. Until it answers, drains fail and the sweeps go on.
        logger.warning("the database can't be used yet: %s", str(error).strip())


def under_dramatiq_cli() -> bool:
    return "dramatiq.cli" in sys.modules
