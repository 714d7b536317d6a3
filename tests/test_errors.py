"""Errors as text, in log lines and in the errors of events."""

import pytest

from outbox.errors import as_sentence


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("no route to host", "no route to host."),
        ("Error 111. Connection refused.", "Error 111. Connection refused."),
        (
            "connection failed: Connection refused\n\tIs the server running on that host?\n",
            "connection failed: Connection refused Is the server running on that host?",
        ),
        ("", "ConnectionError."),
    ],
)
def test_a_message_of_a_driver_becomes_one_line_that_a_sentence_can_follow(message: str, sentence: str) -> None:
    assert as_sentence(ConnectionError(message)) == sentence
