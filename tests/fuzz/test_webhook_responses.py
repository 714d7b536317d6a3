"""Whatever bytes a receiver responds with, the event gets an outcome that can be stored, and the next event is sent."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.destinations.outcome import DELIVERED_OUTCOME, Delivered, Failed, Outcome, Retry
from outbox.errors import Unavailable
from outbox.webhooks.retry_after import LONGEST, SHORTEST
from outbox.webhooks.signature import PREFIX
from outbox.webhooks.webhook import Webhook
from tests.support.receiver import Receiver, answers, says
from tests.support.thoroughness import thorough
from tests.webhooks.deliveries import SECRET, deliver_one

# A receiver may echo what it was sent; the token must not appear in an error.
TOKEN = "hush-hush-token"

lines = st.sampled_from(
    [
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200",
        b"HTTP/1.1 204 No Content",
        b"HTTP/1.1 410 Gone",
        b"HTTP/1.1 429 Slow",
        b"HTTP/1.1 500 \xff\xfe",
        b"HTTP/1.1 503 Away",
        b"HTTP/1.1 301 Moved",
        b"HTTP/1.1 100 Continue",
        b"HTTP/1.1 101 Switching",
        b"HTTP/1.1 103 Hints",
        b"HTTP/1.1 999 Odd",
        b"HTTP/1.1 1000 No",
        b"HTTP/1.1 -1 No",
        b"HTTP/1.1 20 Short",
        b"HTTP/2 200 OK",
        b"HTTP/1.0 200 OK",
        b"HTTP/9.9 200 OK",
        b"ICY 200 OK",
        b"SSH-2.0-x",
        b"\x16\x03\x01\x00",
        b"",
        b" ",
        b"HTTP/1.1 500 " + b"x" * 70_000,
        b"HTTP/1.1 500 " + TOKEN.encode(),
    ]
) | st.binary(max_size=40)
headers = st.sampled_from(
    [
        b"content-length: 2",
        b"content-length: 0",
        b"content-length: 5",
        b"content-length: -1",
        b"content-length: x",
        b"content-length: 99999999999999999999",
        b"content-length: 2\r\ncontent-length: 3",
        b"connection: close",
        b"transfer-encoding: chunked",
        b"transfer-encoding: gzip",
        b"transfer-encoding: chunked, chunked",
        b"content-encoding: gzip",
        b"content-encoding: \xff",
        b"location: http://[",
        b"location: //\xff/" + TOKEN.encode(),
        b"retry-after: 5",
        b"retry-after: -5",
        b"retry-after: 99999999999999999999",
        b"retry-after: \xff",
        b"retry-after: Sun, 31 Feb 2026 00:00:00 GMT",
        b"retry-after: Sun, 06 Nov 0001 08:49:37 GMT",
        b"retry-after: Fri, 31 Dec 9999 23:59:60 GMT",
        b"date: Fri, 31 Dec 9999 23:59:59 GMT",
        b"date: x",
        b"no colon",
        b": no name",
        b" folded",
        b"a\x00b: c",
        b"x: " + b"y" * 70_000,
        b"",
    ]
) | st.binary(max_size=40)
bodies = st.sampled_from(
    [
        b"",
        b"ok",
        b"no\x00pe",
        b"\xff\xfe",
        b"\x1b[31mred\x07",
        b"2\r\nok\r\n0\r\n\r\n",
        b"zz\r\nok",
        b"<b>" * 2_000,
        b"x" * 200_000,
        "é😀\u202e\ud7ff".encode(),
        TOKEN.encode(),
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ]
) | st.binary(max_size=60)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(params=["httpx", "curl"])
def webhook(receiver: Receiver, request: pytest.FixtureRequest) -> Iterator[Webhook]:
    webhook = Webhook("hook", receiver.url, secret=SECRET, token=TOKEN, client=request.param)
    yield webhook
    webhook.close()


def check(outcome: Outcome) -> None:
    """Check that the outcome can be stored, and shows no secrets."""
    if isinstance(outcome, Delivered):
        return
    assert isinstance(outcome, Retry | Unavailable | Failed)
    error = outcome.error
    assert 0 < len(error) < 1_000
    assert error.isprintable()
    error.encode()
    assert TOKEN not in error
    assert SECRET.removeprefix(PREFIX) not in error
    wait = None if isinstance(outcome, Failed) else outcome.not_before
    assert wait is None or (isinstance(wait, timedelta) and SHORTEST <= wait <= LONGEST)


@thorough(300)
@given(line=lines, given=st.lists(headers, max_size=4), body=bodies)
def test_any_bytes_are_an_outcome_and_the_next_event_is_sent(
    receiver: Receiver, webhook: Webhook, line: bytes, given: list[bytes], body: bytes
) -> None:
    receiver.then(says(b"\r\n".join([line, *given, b"", b""]) + body))
    check(deliver_one(webhook))
    receiver.then(answers())
    assert deliver_one(webhook) == DELIVERED_OUTCOME


@thorough(150)
@given(data=st.binary(max_size=400))
def test_bytes_that_are_not_http_are_an_outcome(receiver: Receiver, webhook: Webhook, data: bytes) -> None:
    receiver.then(says(data))
    check(deliver_one(webhook))


@thorough(150)
@given(status=st.integers(200, 599), retry_after=st.text(st.characters(max_codepoint=255), max_size=40))
def test_any_status_with_any_retry_after_is_an_outcome(
    receiver: Receiver, webhook: Webhook, status: int, retry_after: str
) -> None:
    receiver.then(answers(status, TOKEN.encode(), retry_after="".join(retry_after.splitlines())))
    outcome = deliver_one(webhook)
    check(outcome)
    assert isinstance(outcome, Delivered) <= (200 <= status < 300)
