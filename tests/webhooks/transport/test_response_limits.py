"""Only a limited part of a response is parsed, however much time its deadline leaves."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.webhooks.transport import response_limits as limits
from outbox.webhooks.transport.httpcore_threads.response_meter import MOST_READS, ResponseMeter
from outbox.webhooks.transport.libcurl import multi_loop as loop
from outbox.webhooks.transport.libcurl.response_heads import ResponseHeads
from outbox.webhooks.transport.response_limits import (
    BODY_LINES,
    BODY_WIRE_BYTES,
    HEAD_BYTES,
    MOST_INTERIM,
    MOST_LINES,
    LimitExceeded,
)
from tests.support.receiver import ClientConnection, Exchange, Receiver, Reply, answers, says
from tests.support.servers import PATIENCE_SECONDS
from tests.support.thoroughness import thorough
from tests.webhooks.deliveries import MakeWebhook, deliver, deliver_one, make_event, retried, unavailable

HINT = b"HTTP/1.1 103 Early Hints\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
TOO_MANY = f"no HTTP response: more than {MOST_INTERIM} interim responses"


def for_ever(begins: bytes, goes_on: bytes) -> Reply:
    def reply(exchange: Exchange) -> None:
        exchange.send(begins)
        while True:
            exchange.connection.send(goes_on)

    return reply


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time limit of the body end nothing here."""
    monkeypatch.setattr(limits, "BODY_SECONDS", PATIENCE_SECONDS)


def outcome(make_webhook: MakeWebhook, reply: Reply) -> Any:
    with Receiver(reply) as receiver:
        found = deliver_one(make_webhook(receiver.url, timeout=PATIENCE_SECONDS))
        receiver.notices_the_end()
        return found


class TestBeforeTheFinalResponse:
    def test_interim_responses_up_to_the_limit_are_read(self, make_webhook: MakeWebhook) -> None:
        assert outcome(make_webhook, says(HINT * MOST_INTERIM + OK)) == DELIVERED_OUTCOME

    def test_one_more_is_no_response(self, make_webhook: MakeWebhook) -> None:
        assert unavailable(outcome(make_webhook, says(HINT * (MOST_INTERIM + 1) + OK))) == TOO_MANY

    @pytest.mark.parametrize("hint", [HINT, b"HTTP/1.1 100 \r\n\r\n", b"HTTP/1.1 102 P\r\nx: y\r\n\r\n"])
    @pytest.mark.parametrize("at_once", [1, 1_000])
    def test_interim_responses_without_end_are_no_response(
        self, make_webhook: MakeWebhook, hint: bytes, at_once: int
    ) -> None:
        assert unavailable(outcome(make_webhook, for_ever(hint, hint * at_once))) == TOO_MANY

    def test_interim_responses_that_come_line_by_line_are_no_response(self, make_webhook: MakeWebhook) -> None:
        def drip(exchange: Exchange) -> None:
            while True:
                for line in (b"HTTP/1.1 103 E\r\n", b"\r\n"):
                    exchange.connection.send(line)
                    exchange.connection.pause(0.001)

        assert unavailable(outcome(make_webhook, drip)) == TOO_MANY

    def test_on_a_kept_connection_they_are_counted_for_each_request(self, make_webhook: MakeWebhook) -> None:
        def hints(exchange: Exchange) -> None:
            exchange.send(HINT * MOST_INTERIM + OK)

        with Receiver(hints) as receiver:
            webhook = make_webhook(receiver.url, timeout=PATIENCE_SECONDS)
            assert deliver(webhook, [make_event() for _ in range(5)]) == [DELIVERED_OUTCOME] * 5
            assert receiver.connections == 1
            receiver.then(says(HINT * (MOST_INTERIM + 1) + OK))
            assert unavailable(deliver_one(webhook)) == TOO_MANY
            assert len(receiver.requests) == 6, "it has answered: it is not asked again"

    def test_header_lines_are_read_up_to_the_limit(self, make_webhook: MakeWebhook) -> None:
        lines = b"".join(b"x-%d: y\r\n" % number for number in range(MOST_LINES - 1))
        assert outcome(make_webhook, says(b"HTTP/1.1 204 OK\r\n" + lines + b"\r\n")) == DELIVERED_OUTCOME
        more = b"HTTP/1.1 204 OK\r\nz: z\r\n" + lines + b"\r\n"
        assert (
            unavailable(outcome(make_webhook, says(more))) == f"no HTTP response: more than {MOST_LINES} header lines"
        )

    def test_header_lines_of_all_heads_count(self, make_webhook: MakeWebhook) -> None:
        hint = b"HTTP/1.1 103 E\r\n" + b"x: y\r\n" * (MOST_LINES // 4) + b"\r\n"
        assert outcome(make_webhook, says(hint * 3 + OK)) == DELIVERED_OUTCOME
        assert "header lines" in unavailable(outcome(make_webhook, says(hint * 4 + OK)))

    def test_header_lines_without_end_are_no_response(self, make_webhook: MakeWebhook) -> None:
        error = unavailable(outcome(make_webhook, for_ever(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 100)))
        assert error.startswith("no HTTP response: more than ")

    def test_bytes_of_headers_are_read_up_to_the_limit(self, make_webhook: MakeWebhook) -> None:
        begins, ends = b"HTTP/1.1 204 OK\r\nx: ", b"\r\n\r\n"
        fits = begins + b"y" * (HEAD_BYTES - len(begins + ends)) + ends
        assert outcome(make_webhook, says(fits)) == DELIVERED_OUTCOME
        error = unavailable(outcome(make_webhook, says(fits.replace(b"x: ", b"xx: "))))
        assert error == f"no HTTP response: more than {HEAD_BYTES} bytes of headers"

    def test_bytes_of_all_heads_count(self, make_webhook: MakeWebhook) -> None:
        hint = b"HTTP/1.1 103 E\r\nx: " + b"y" * (HEAD_BYTES // 4) + b"\r\n\r\n"
        assert outcome(make_webhook, says(hint * 3 + OK)) == DELIVERED_OUTCOME
        assert "bytes of headers" in unavailable(outcome(make_webhook, says(hint * 4 + OK)))

    def test_a_header_without_end_is_no_response(self, make_webhook: MakeWebhook) -> None:
        error = unavailable(outcome(make_webhook, for_ever(b"HTTP/1.1 200 OK\r\nx: ", b"y" * 1_000)))
        assert error.startswith("no HTTP response: ")

    def test_a_proxy_that_sends_interim_responses_without_end_opens_no_tunnel(
        self, make_webhook: MakeWebhook, client: str
    ) -> None:
        with Receiver(for_ever(HINT, HINT * 100)) as proxy:
            webhook = make_webhook(
                "https://receiver.example/", proxy=f"http://127.0.0.1:{proxy.port}", timeout=PATIENCE_SECONDS
            )
            error = unavailable(deliver_one(webhook))
            assert error == TOO_MANY if client == "httpx" else "CONNECT tunnel failed, response 103" in error
            proxy.notices_the_end()


class TestAfterTheHead:
    """The status is known then: nothing that follows changes the outcome."""

    @pytest.mark.parametrize(
        ("begins", "goes_on"),
        [
            (b"", b"1\r\nx\r\n"),
            (b"", b"1;" + b"a=b;" * 250 + b"\r\nx\r\n"),
            (b"1;", b"a=b;" * 250),
            (b"2\r\nok\r\n0\r\n", b"x: y\r\n"),
            (b"2\r\nok\r\n0\r\nx: ", b"y" * 1_000),
        ],
        ids=["chunks", "extensions", "an extension", "trailers", "a trailer"],
    )
    def test_chunks_without_end_are_not_read_to_their_end(
        self, make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch, begins: bytes, goes_on: bytes, client: str
    ) -> None:
        if client == "curl" and begins.startswith(b"1;"):
            monkeypatch.setattr(limits, "BODY_SECONDS", 0.2)  # which libcurl skips, showing nothing of it
        for status, expected in ((b"200 OK", None), (b"500 No", "HTTP 500 No")):
            found = outcome(make_webhook, for_ever(b"HTTP/1.1 " + status + b"\r\n" + CHUNKED + begins, goes_on))
            if expected is None:
                assert found == DELIVERED_OUTCOME
            else:
                assert retried(found).startswith(expected)

    def test_the_beginning_of_a_long_error_is_still_shown(self, make_webhook: MakeWebhook) -> None:
        lines = b"out of memory\n" + b"\n" * (BODY_LINES + 1)
        assert retried(outcome(make_webhook, for_ever(b"HTTP/1.1 500 No\r\n\r\n" + lines, lines))) == (
            "HTTP 500 No: out of memory"
        )

    def test_a_body_with_many_blank_lines_is_not_taken_for_heads(self, make_webhook: MakeWebhook) -> None:
        body = b"HTTP/1.1 103 E\r\n\r\n" * (MOST_INTERIM + 10)
        with Receiver(answers(200, body)) as receiver:
            webhook = make_webhook(receiver.url)
            assert deliver(webhook, [make_event(), make_event()]) == [DELIVERED_OUTCOME] * 2
            assert receiver.connections == 1


class TestByteByByte:
    def test_pieces_are_read_up_to_the_limit(self) -> None:
        meter = ResponseMeter()
        for _ in range(MOST_READS):
            assert meter.admit(b"x") == b"x"
        with pytest.raises(LimitExceeded, match="pieces"):
            meter.admit(b"x")
        meter.begin()
        assert meter.admit(b"x") == b"x"

    def test_a_header_that_comes_byte_by_byte_costs_few_steps(
        self, make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch, client: str
    ) -> None:
        """For httpx the reads are counted, for libcurl the steps of its loop."""
        steps: list[float] = []
        count(monkeypatch, ResponseMeter, "admit", steps)
        count(monkeypatch, loop.MultiLoop, "_step", steps)

        def drip(connection: ClientConnection) -> None:
            connection.read()
            connection.send(b"HTTP/1.1 200 OK\r\nx: ")
            while True:
                connection.send(b"y")

        began_at = time.monotonic()
        with Receiver(on_connect=drip) as receiver:
            unavailable(deliver_one(make_webhook(receiver.url, timeout=1.0)))
        seconds = time.monotonic() - began_at
        assert (
            len(steps)
            <= {
                "httpx": MOST_READS + 1,
                "curl": loop.STEPS_PER_REQUEST + seconds / loop.POLL_SECONDS + 1,
            }[client]
        )


def count(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, calls: list[float]) -> None:
    whole: Callable[..., Any] = getattr(owner, name)

    def counted(*args: Any) -> Any:
        calls.append(time.monotonic())
        return whole(*args)

    monkeypatch.setattr(owner, name, counted)


# However it is cut into pieces

HEADS = [
    HINT,
    b"HTTP/1.1 100 C\nx: y\n\n",
    OK,
    b"HTTP/1.1 500 No\r\nx: y\r\n\r\n",
    b"\r\n",
    b"\n",
    b"1\r\nx\r\n",
    b"text",
]


def admitted(pieces: list[bytes]) -> tuple[bytes, str | None]:
    """Return the bytes that a meter admits, and the error with which it ends."""
    meter, through = ResponseMeter(), b""
    for piece in pieces:
        try:
            through += meter.admit(piece)
        except LimitExceeded as error:
            return through, str(error)
    return through, None


@thorough(200)
@given(st.lists(st.sampled_from(HEADS), max_size=12), st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_the_limits_do_not_depend_on_the_pieces_in_which_a_response_comes(parts: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(parts)
    pieces, at = [], 0
    for number in range(len(whole)):
        size = sizes[number % len(sizes)]
        pieces.append(whole[at : at + size])
        at += size
    pieces = [piece for piece in pieces if piece]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MOST_INTERIM", 3)
        patch.setattr(limits, "MOST_LINES", 12)
        through, why = admitted(pieces)
        at_once, why_at_once = admitted([whole] if whole else [])
    assert why == why_at_once
    if why is None:
        assert through == at_once == whole


@thorough(200)
@given(st.lists(st.sampled_from(HEADS), max_size=12), st.integers(1, 5))
def test_the_heads_are_the_same_however_often_they_are_parsed(parts: list[bytes], every: int) -> None:
    lines = b"".join(parts).splitlines(keepends=True)
    seldom, often = ResponseHeads(), ResponseHeads()
    seldom.lines.extend(lines)
    seldom.parse()
    for number, line in enumerate(lines):
        often.lines.append(line)
        if number % every == 0:
            often.parse()
    often.parse()
    assert (often.of_receiver, often.excess) == (seldom.of_receiver, seldom.excess)


def test_a_body_is_cut_at_its_limits() -> None:
    meter = ResponseMeter()
    assert meter.admit(OK + b"x" * (BODY_WIRE_BYTES + 1)) == OK + b"x" * BODY_WIRE_BYTES
    with pytest.raises(LimitExceeded, match="body"):
        meter.admit(b"x")
    meter.begin()
    assert meter.admit(OK + b"a\n" * (BODY_LINES + 1)) == OK + b"a\n" * BODY_LINES
    with pytest.raises(LimitExceeded, match="body"):
        meter.admit(b"x")
