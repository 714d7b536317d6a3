"""What pika logs about the outbox's own connections."""

import logging

import pika
import pika.exceptions
import pytest

from outbox.buses import pika_log
from outbox.buses.rabbit_connection import RabbitConnection

NOTHING_THERE = "amqp://guest:guest@127.0.0.1:1/"


def connect() -> None:
    with pytest.raises(OSError, match="refused"):
        RabbitConnection([pika.URLParameters(NOTHING_THERE)], "bus", 30)


def of_pika(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.startswith("pika")]


def test_a_server_that_is_down_is_told_by_the_outbox_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    connect()
    assert of_pika(caplog) == []


def test_it_can_be_seen_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    connect()
    assert {record.levelname for record in of_pika(caplog)} == {"DEBUG"}
    assert "Connection refused" in caplog.text


def test_an_applications_own_connection_is_logged_as_usual(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pika_log.quiet()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(NOTHING_THERE))
    assert any(record.levelname == "ERROR" for record in of_pika(caplog))
