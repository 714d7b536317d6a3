"""What a receiver's response means for the event, and which error is stored."""

import gzip
import json
import timeit
from collections.abc import Callable
from datetime import timedelta
from typing import ClassVar

import pytest

from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import Unavailable
from outbox.storage.timestamp import DatabaseClock
from outbox.webhooks.redaction import Redaction, hide_values
from outbox.webhooks.transport import response_limits as limits
from tests.support.receiver import (
    ClientConnection,
    Exchange,
    Gone,
    Receiver,
    Reply,
    answers,
    hangs_up,
    resets,
    resets_in_mid_body,
    says,
    sends_a_gigabyte,
)
from tests.support.servers import PATIENCE_SECONDS, free_port
from tests.webhooks.deliveries import (
    NOW,
    SECRET,
    MakeWebhook,
    deliver,
    deliver_one,
    failed,
    make_event,
    make_large_event,
    retried,
    unavailable,
)


def answered(make_webhook: MakeWebhook, reply: Reply) -> Outcome:
    with Receiver(reply) as receiver:
        return deliver_one(make_webhook(receiver.url))


class TestStatuses:
    @pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
    def test_2xx_is_delivered(self, make_webhook: MakeWebhook, status: int) -> None:
        body = b"" if status == 204 else b"ok"
        assert answered(make_webhook, answers(status, body)) == DELIVERED_OUTCOME

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 408, 409, 413, 422, 425, 451, 500, 501, 505, 599, 600])
    def test_most_others_cost_an_attempt(self, make_webhook: MakeWebhook, status: int) -> None:
        outcome = answered(make_webhook, answers(status, b"because"))
        assert outcome == Retry(f"HTTP {status} Whatever: because", http_status=status)

    @pytest.mark.parametrize("status", [429, 502, 503, 504])
    def test_statuses_of_an_unavailable_receiver_cost_no_attempt(self, make_webhook: MakeWebhook, status: int) -> None:
        error = unavailable(answered(make_webhook, answers(status, b"later")))
        assert error == f"HTTP {status} Whatever: later"

    def test_410_is_final(self, make_webhook: MakeWebhook) -> None:
        assert failed(answered(make_webhook, answers(410, b"gone"))) == "HTTP 410 Whatever: gone"

    def test_the_user_can_choose_which_are_final_or_cost_nothing(self, make_webhook: MakeWebhook) -> None:
        with Receiver(answers(404), answers(500), answers(410), answers(503), answers(302)) as receiver:
            webhook = make_webhook(receiver.url, fail_on=[404, 302], unavailable_on=[500])
            outcomes = deliver(webhook, [make_event() for _ in range(5)])
        assert [type(outcome) for outcome in outcomes] == [Failed, Unavailable, Retry, Retry, Failed]

    def test_early_hints_are_not_the_final_response(self, make_webhook: MakeWebhook) -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
        assert answered(make_webhook, says(hints)) == DELIVERED_OUTCOME


class TestRedirects:
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_a_redirect_is_refused_and_only_its_host_is_named(self, make_webhook: MakeWebhook, status: int) -> None:
        with Receiver() as elsewhere:
            location = f"http://me:hush@127.0.0.1:{elsewhere.port}/path?key=hush"
            error = retried(answered(make_webhook, answers(status, location=location)))
            assert elsewhere.connections == 0
        expected = f"HTTP {status} Whatever: redirects are not followed; this one leads to 127.0.0.1"
        assert error == expected

    @pytest.mark.parametrize(
        ("location", "named"),
        [
            ("/other?key=hush", "the same host"),
            ("http://[bad", "a location that can't be parsed"),
            ("", "the same host"),
        ],
    )
    def test_its_location_may_be_anything(self, make_webhook: MakeWebhook, location: str, named: str) -> None:
        error = retried(answered(make_webhook, answers(302, location=location)))
        assert error.endswith(f"leads to {named}")


class TestRetryAfter:
    def test_it_decides_when_a_refused_event_is_tried_again(self, make_webhook: MakeWebhook) -> None:
        assert answered(make_webhook, answers(500, b"", retry_after="7")) == Retry(
            "HTTP 500 Whatever", timedelta(seconds=7), http_status=500
        )

    def test_it_decides_when_an_unavailable_receiver_is_tried_again(self, make_webhook: MakeWebhook) -> None:
        now, later = "Sat, 31 Jan 2026 12:00:00 GMT", "Sat, 31 Jan 2026 12:02:00 GMT"
        outcome = answered(make_webhook, answers(503, date=now, retry_after=later))
        assert isinstance(outcome, Unavailable)
        assert outcome.not_before == timedelta(minutes=2)

    def test_an_invalid_value_is_ignored(self, make_webhook: MakeWebhook) -> None:
        outcome = answered(make_webhook, answers(503, retry_after="soon"))
        assert isinstance(outcome, Unavailable)
        assert outcome.not_before is None


class TestNoResponse:
    def test_a_refused_connection(self, make_webhook: MakeWebhook) -> None:
        port = free_port()
        error = unavailable(deliver_one(make_webhook(f"http://127.0.0.1:{port}")))
        assert error == f"Connection refused while connecting to 127.0.0.1, port {port}"

    def test_a_name_that_does_not_exist(self, make_webhook: MakeWebhook) -> None:
        error = unavailable(deliver_one(make_webhook("http://no-such-host.invalid/")))
        assert error.endswith("while resolving no-such-host.invalid")

    def test_a_receiver_that_hangs_up(self, make_webhook: MakeWebhook) -> None:
        error = unavailable(answered(make_webhook, hangs_up))
        assert error == "no HTTP response: Server disconnected without sending a response."

    def test_a_receiver_that_resets_the_connection(self, make_webhook: MakeWebhook) -> None:
        error = unavailable(answered(make_webhook, resets))
        assert error == "Connection reset by peer while waiting for the response"

    @pytest.mark.parametrize(
        "data",
        [
            b"garbage\r\n\r\n",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"HTTP/1.1 xyz\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000,
            b"\x00" * 1000,
        ],
    )
    def test_what_is_not_http(self, make_webhook: MakeWebhook, data: bytes) -> None:
        error = unavailable(answered(make_webhook, says(data)))
        assert error.startswith("no HTTP response: ")
        assert len(error) <= 200
        assert error.isprintable()

    def test_a_response_counts_even_if_the_receiver_hung_up_before_it_had_read_everything(
        self, make_webhook: MakeWebhook
    ) -> None:
        def refuse_unread(connection: ClientConnection) -> None:
            connection.read(1)
            connection.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
            raise Gone

        with Receiver(on_connect=refuse_unread) as receiver:
            outcome = deliver_one(make_webhook(receiver.url), make_large_event())
            assert retried(outcome) == "HTTP 413 Too Large"


class TestBodies:
    def test_a_reset_after_2xx_changes_nothing(self, make_webhook: MakeWebhook) -> None:
        assert answered(make_webhook, resets_in_mid_body) == DELIVERED_OUTCOME

    def test_only_the_beginning_of_a_gigabyte_is_read(
        self, make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "BODY_SECONDS", PATIENCE_SECONDS)  # it is not the time that ends it
        with Receiver(sends_a_gigabyte) as receiver:
            assert retried(deliver_one(make_webhook(receiver.url))) == "HTTP 500 No: " + "x" * 200
            receiver.notices_the_end()
            assert receiver.bytes_sent < 20_000_000  # what the system's own buffers took

    def test_a_chunked_body_without_end_is_not_read_to_its_end(self, make_webhook: MakeWebhook) -> None:
        def chunks(exchange: Exchange) -> None:
            exchange.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                exchange.send(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")

        with Receiver(chunks) as receiver:
            assert deliver_one(make_webhook(receiver.url)) == DELIVERED_OUTCOME
            receiver.notices_the_end()

    def test_what_is_compressed_is_neither_unpacked_nor_shown(self, make_webhook: MakeWebhook) -> None:
        bomb = gzip.compress(b"\x00" * 10_000_000)
        assert retried(answered(make_webhook, answers(500, bomb, content_encoding="gzip"))) == "HTTP 500 Whatever"
        lookalike = answers(500, b"text, to look at", content_encoding="br")
        assert retried(answered(make_webhook, lookalike)) == "HTTP 500 Whatever"

    @pytest.mark.parametrize(
        ("body", "shown"),
        [
            (b"", ""),
            (b"out of\r\n\tmemory\n", ": out of memory"),
            (b"\xff\xfe\x00binary", ""),
            (b"bell\x07", ": bell\N{REPLACEMENT CHARACTER}"),
            ("weiß".encode(), ": weiß"),
            (b"x" * 5_000, ": " + "x" * 200),
            (b"x" * 4_095 + "ß".encode(), ": " + "x" * 200),  # cut in the middle of a character
        ],
    )
    def test_the_beginning_of_a_text_is_shown_on_one_line(
        self, make_webhook: MakeWebhook, body: bytes, shown: str
    ) -> None:
        assert retried(answered(make_webhook, answers(500, body))) == "HTTP 500 Whatever" + shown

    def test_a_reason_may_be_missing_or_long(self, make_webhook: MakeWebhook) -> None:
        assert retried(answered(make_webhook, answers("500", b""))) == "HTTP 500"
        assert retried(answered(make_webhook, answers("500 " + "x" * 500, b""))) == "HTTP 500 " + "x" * 60


class TestRedaction:
    URL = "http://customer:p%C3%A4ssword@{}/private/path?key=query-key&other=1"

    def echoed(self, make_webhook: MakeWebhook, **options: object) -> str:
        """A receiver that repeats the whole request in its response."""

        def echo(exchange: Exchange) -> None:
            request = exchange.request
            told = f"{request.target} {request.pairs} pässword query-key"
            answers(f"500 {request.target}", told.encode())(exchange)

        with Receiver(echo) as receiver:
            url = options.pop("url", self.URL)
            webhook = make_webhook(str(url).format(f"127.0.0.1:{receiver.port}"), **options)
            return retried(deliver_one(webhook))

    def test_what_was_in_the_url_is_not_shown_even_if_the_receiver_repeats_it(self, make_webhook: MakeWebhook) -> None:
        error = self.echoed(make_webhook)
        assert "***" in error
        for part in ("customer", "pässword", "p%C3%A4ssword", "query-key", "/private/path"):
            assert part not in error

    def test_a_token_is_not_shown(self, make_webhook: MakeWebhook) -> None:
        error = self.echoed(make_webhook, url="http://{}/", token="bearer-token")
        assert "bearer-token" not in error
        assert "Bearer" not in error

    def test_a_part_of_a_token_is_not_stored(self, make_webhook: MakeWebhook) -> None:
        with Receiver(answers(401, b"token SK_LIVE_51HxYzA... is revoked")) as receiver:
            error = retried(deliver_one(make_webhook(receiver.url, token="sk_live_51HxYzAbCdEfGh")))
        assert error == "HTTP 401 Whatever: token ***... is revoked"

    def test_the_users_own_headers_are_not_shown(self, make_webhook: MakeWebhook) -> None:
        assert "api-key-1" not in self.echoed(make_webhook, url="http://{}/", headers={"x-key": "api-key-1"})

    def test_if_one_secret_is_part_of_another_the_longer_one_is_hidden_whole(self) -> None:
        assert Redaction(["secret", "secret-1", "secret-12"]).redact("secret-12 secret-13") == "*** ***3"

    def test_secrets_are_redacted_before_the_text_is_cut(self, make_webhook: MakeWebhook) -> None:
        body = b"x" * 195 + b"token-that-is-cut"
        with Receiver(answers(500, body)) as receiver:
            error = retried(deliver_one(make_webhook(receiver.url, token="token-that-is-cut")))
        assert error.endswith("x***")

    @pytest.mark.parametrize("segment", ["T0A1B2C3", "xoxb-12345", "letmein"])
    def test_a_segment_of_the_path_is_not_shown(self, make_webhook: MakeWebhook, segment: str) -> None:
        with Receiver(answers(404, f"no hook {segment} in services".encode())) as receiver:
            error = retried(deliver_one(make_webhook(f"{receiver.url}/services/{segment}/x")))
        assert error == "HTTP 404 Whatever: no hook *** in services"

    def test_a_query_without_a_name_is_not_shown(self, make_webhook: MakeWebhook) -> None:
        with Receiver(answers(404, b"unknown: bare-key, b%20&re, b &re")) as receiver:
            error = retried(deliver_one(make_webhook(f"{receiver.url}/?bare-key&b%20%26re")))
        assert error == "HTTP 404 Whatever: unknown: ***, ***, ***"

    @pytest.mark.parametrize(
        "echo",
        [
            "https://hooks.example/T0/B1/secr et?k=v&w=ä",
            r"https:\/\/hooks.example\/T0\/B1\/secr et?k=v&w=\u00e4",
            r"https:\u002f\u002Fhooks.example\u002fT0\u002fB1\u002fsecr\u0020et\u003fk\u003dv\u0026w\u003d\u00E4",
            "https://hooks.example/T0/B1/secr et?k=v&amp;w=ä",
            "https:&#x2f;&#x2F;hooks.example&#47;T0&#47;B1&#47;secr et?k&#61;v&#38;w&#61;&#228;",
            "https%3A%2F%2Fhooks.example%2fT0%2fB1%2fsecr%20et%3Fk%3Dv%26w%3D%c3%a4",
            "https://hooks.example/T0/B1/secr+et?k=v&w=%C3%A4",
        ],
    )
    def test_a_secret_is_recognised_in_every_escape(self, echo: str) -> None:
        redaction = Redaction(["/T0/B1/secr et?k=v&w=ä"])
        assert redaction.redact(f"bad url {echo}!").endswith("hooks.example***!")

    def test_a_secret_at_the_end_of_what_is_searched_is_replaced_whole(self) -> None:
        redaction = Redaction(["secret-secret"])
        assert redaction.redact("x" * 10 + "secret-secret, more", 12) == "x" * 10 + "***"
        assert redaction.redact("x" * 10 + "secret-secret, more", 10) == "x" * 10
        assert Redaction([]).redact("x" * 20, 12) == "x" * 12

    def test_the_signature_of_the_request_is_not_shown(self, make_webhook: MakeWebhook) -> None:
        error = self.echoed(make_webhook, url="http://{}/", secret=SECRET, headers={"x-first": "first-header"})
        assert "v1," not in error


class TestWhatTheEventContains:
    PAYLOAD: ClassVar[dict[str, object]] = {
        "name": "Žofia Nováková",
        "card": 4_111_111_111_111_111,
        "city": "Praha",
        "note": 'she said "leave it at the door" / twice',
        "nested": [{"iban": "CZ6508000000192000145399"}],
        "few": "abcd",
    }
    HIDDEN = ("Žofia", "Nováková", "Zofia", "4111", "Praha", "leave it", "the door", "CZ65", "145399")

    def told(self, make_webhook: MakeWebhook, text: str, **headers: str) -> str:
        with Receiver(answers(422, text.encode())) as receiver:
            return retried(deliver_one(make_webhook(receiver.url), make_event(self.PAYLOAD, headers=headers)))

    @pytest.mark.parametrize(
        "write",
        [
            lambda payload: json.dumps(payload, ensure_ascii=False),
            json.dumps,
            lambda payload: json.dumps(payload, indent=4).replace("/", r"\/"),
            lambda payload: json.dumps({"you sent": json.dumps(payload, ensure_ascii=False)}, ensure_ascii=False),
            repr,
            lambda payload: "\n".join(f"{key}: {value}" for key, value in payload.items()),
        ],
    )
    def test_is_not_stored_if_the_receiver_repeats_it(
        self, make_webhook: MakeWebhook, write: Callable[[object], str]
    ) -> None:
        error = self.told(make_webhook, write(self.PAYLOAD))
        assert error.startswith("HTTP 422 Whatever: ")
        assert "name" in error  # the names of keys stay, for whoever has to find the cause
        assert not any(part in error for part in self.HIDDEN)

    def test_is_replaced_in_a_sentence_that_stays_readable(self, make_webhook: MakeWebhook) -> None:
        error = self.told(make_webhook, "card 4111111111111111 of Žofia Nováková in Praha is declined, see abcd")
        assert error == "HTTP 422 Whatever: card *** of *** in *** is declined, see abcd"

    def test_is_replaced_where_only_a_part_of_it_is_repeated(self, make_webhook: MakeWebhook) -> None:
        error = self.told(make_webhook, "no account 08000000192000145399; leave it at the d…")
        assert error == "HTTP 422 Whatever: no account ***; ***…"

    def test_includes_its_headers(self, make_webhook: MakeWebhook) -> None:
        assert self.told(make_webhook, "bad x: my-header", x="my-header") == "HTTP 422 Whatever: bad x: ***"

    def test_is_not_shown_at_the_edge_of_what_is_searched(self, make_webhook: MakeWebhook) -> None:
        """Text that is replaced is shorter than it was, so what stands far behind could come into view."""
        iban = "CZ6508000000192000145399"
        for offset in range(len(iban)):
            error = self.told(make_webhook, "#" * offset + iban * 50)
            assert error == f"HTTP 422 Whatever: {'#' * offset}***"
        for offset in range(len("Praha")):
            error = self.told(make_webhook, "#" * offset + "Praha" * 300)
            assert set(error.removeprefix("HTTP 422 Whatever: ")) <= {"#", "*"}

    def test_a_reason_phrase_is_cleaned_as_well(self, make_webhook: MakeWebhook) -> None:
        with Receiver(answers("422 No Praha", b"")) as receiver:
            outcome = deliver_one(make_webhook(receiver.url), make_event(self.PAYLOAD))
        assert retried(outcome) == "HTTP 422 No ***"

    @pytest.mark.parametrize(("status", "error"), [(422, "HTTP 422 Unprocessable"), (599, "HTTP 599")])
    def test_without_the_excerpt_nothing_of_the_response_is_stored(
        self, make_webhook: MakeWebhook, status: int, error: str
    ) -> None:
        with Receiver(answers(f"{status} Told you", b"the body")) as receiver:
            outcome = deliver_one(make_webhook(receiver.url, response_excerpt=False))
        assert retried(outcome).startswith(error)
        assert "body" not in retried(outcome)
        assert "Told" not in retried(outcome)

    @pytest.mark.parametrize(
        ("data", "error"),
        [
            (b"garbage\r\n\r\n", "no HTTP response"),
            (b"HTTP/1.1 garbage\r\n\r\n", "no HTTP response"),
            (b"HTTP/1.1 200 OK\r\ngarbage\r\n\r\n", "no HTTP response"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: garbage\r\n\r\n", "no HTTP response"),
            (
                b"HTTP/1.1 301 garbage\r\nLocation: http://garbage.example/\r\nContent-Length: 0\r\n\r\n",
                "HTTP 301 Moved Permanently: redirects are not followed",
            ),
        ],
    )
    def test_nor_is_anything_of_what_is_not_http_or_leads_elsewhere(
        self, make_webhook: MakeWebhook, data: bytes, error: str
    ) -> None:
        with Receiver(says(data)) as receiver:
            outcome = deliver_one(make_webhook(receiver.url, response_excerpt=False))
        assert isinstance(outcome, Retry | Unavailable)
        assert outcome.error == error

    def test_a_large_payload_is_searched_in_a_fraction_of_a_request(self) -> None:
        """A receiver that refuses everything must not keep the worker busy: 256 KiB, and nothing in common."""
        values = ["abcdefghij" * 6_500, "klmnopqrst" * 19_000, *(f"value{number}" for number in range(2_000))]
        seconds = min(timeit.repeat(lambda: hide_values("0123456789" * 100, values), number=1, repeat=3))
        assert seconds < 2


def test_a_retry_after_date_is_compared_with_the_databases_clock(make_webhook: MakeWebhook) -> None:
    """Without a Date header, the date is compared with the lease's clock, not with this host's."""
    with Receiver(answers(503, retry_after="Sat, 31 Jan 2026 12:01:00 GMT")) as receiver:
        webhook = make_webhook(receiver.url)
        lease = Lease(Lease.lasting(60).ends_at, 1, DatabaseClock(NOW))
        ((_, outcome),) = webhook.deliver([make_event()], lease)
    assert isinstance(outcome, Unavailable)
    assert isinstance(outcome.not_before, timedelta)
    assert timedelta(seconds=50) < outcome.not_before < timedelta(seconds=60)
