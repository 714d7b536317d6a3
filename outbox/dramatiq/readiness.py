"""Check, before a worker starts, that other processes can reach its broker, and that the tables exist."""

from __future__ import annotations

import logging

import dramatiq
import dramatiq.broker
import peewee
from dramatiq.brokers.stub import StubBroker

from outbox.core import Outbox
from outbox.dramatiq.broker import check_matches_settings
from outbox.dramatiq.dramatiq_program import under_dramatiq_cli
from outbox.errors import SettingsError, as_sentence

logger = logging.getLogger(__name__)


def check_ready(box: Outbox, broker: dramatiq.Broker) -> None:
    """Raise an OutboxError if this worker could not deliver events. The error says what is missing and what to do."""
    if under_dramatiq_cli() and isinstance(broker, StubBroker):
        raise SettingsError(
            "OUTBOX_REDIS_URL is not set, and no module named here sets a broker, so no message from another process "
            "would reach these workers. Set OUTBOX_REDIS_URL, or name the module that sets your broker (`outbox worker "
            "your.broker your.module`), or run everything in one process (`outbox up your.module`)."
        )
    if under_dramatiq_cli() and dramatiq.broker.global_broker is not broker:
        raise SettingsError(
            "dramatiq.set_broker was called after this worker had found its broker, so the worker would not get the "
            "messages that are sent to the new broker. Name the module that sets the broker before `jobs` (`dramatiq "
            "your.broker jobs your.module`), or run `outbox worker your.module`."
        )
    check_matches_settings(broker, box.settings)
    try:
        box.check_schema()
    except peewee.PeeweeException as error:
        # The database may still be starting. Until it is available, each claim fails, and the next sweep tries again.
        logger.warning("Could not check the tables: %s The next sweep tries the database again.", as_sentence(error))
