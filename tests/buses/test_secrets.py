"""What of the settings of message brokers is a secret, and how often a client's log lines are repeated."""

import logging
from typing import Any

import pytest
from nats.aio.client import RawCredentials

import outbox
from outbox.buses.kafka_connection import REPEATED_SECONDS, ProducerLog

HUSH = "hush-4711-hush"


@pytest.mark.parametrize(
    "options",
    [
        {"user": "me", "password": HUSH},
        {"token": HUSH},
        {"nkeys_seed_str": HUSH},
        {"user_credentials": RawCredentials(f"-----BEGIN USER NKEY SEED-----\n{HUSH}\n------END USER NKEY SEED------")},
        {"ws_connection_headers": {"Authorization": [f"Bearer {HUSH}"]}},
    ],
)
def test_an_error_of_nats_does_not_show_what_authenticates(options: dict[str, Any]) -> None:
    bus = outbox.Nats("bus", servers="nats://localhost:4222", options=options)
    assert HUSH not in bus._redact(f"refused: {HUSH}")


def test_what_librdkafka_repeats_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = ProducerLog(lambda text: text, lambda: now)
    with caplog.at_level(logging.DEBUG):
        for number in range(3):
            log.log(logging.ERROR, "FAIL %s", f"kafka-1: refused (after {number}ms)")
        log.log(logging.ERROR, "another error")
        now = REPEATED_SECONDS
        log.log(logging.ERROR, "FAIL %s", "kafka-1: refused (after 7ms)")
    levels = [(record.levelname, record.getMessage()[:4]) for record in caplog.records]
    assert levels == [("ERROR", "FAIL"), ("DEBUG", "FAIL"), ("DEBUG", "FAIL"), ("ERROR", "anot"), ("ERROR", "FAIL")]
