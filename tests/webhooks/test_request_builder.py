"""The requests that arrive at a receiver: body, headers, signature."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Reference

import outbox
from outbox import webhooks
from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.destinations.protocol import Lease
from outbox.events import envelope
from outbox.events.event import Event
from outbox.storage.timestamp import DatabaseClock
from outbox.webhooks.webhook import Webhook
from tests.support.receiver import Received, Receiver, answers
from tests.webhooks.deliveries import OTHER_SECRET, SECRET, MakeWebhook, deliver, deliver_one, make_event

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def arrived(make_webhook: MakeWebhook, event: Event | None = None, **options: Any) -> Received:
    with Receiver() as receiver:
        assert deliver_one(make_webhook(receiver.url, **options), event) == DELIVERED_OUTCOME
        return receiver.only


def at(webhook: Webhook, event: Event, moment: datetime) -> None:
    """Deliver one event when the database's clock shows this time, and return the request."""
    lease = Lease(time.monotonic() + 60, 1, DatabaseClock(moment))
    assert list(webhook.deliver([event], lease)) == [(event, DELIVERED_OUTCOME)]


class TestBody:
    def test_it_is_the_envelope(self, make_webhook: MakeWebhook) -> None:
        event = make_event('{"b": 1,\n "a": 2.50}', tenant_id="t", correlation_id="c", headers={"x": [1]})
        request = arrived(make_webhook, event)
        assert request.body == envelope.as_json(event)
        assert event.body in request.body, "the payload's own bytes"
        assert json.loads(request.body) == envelope.as_dict(event)
        assert request.headers["content-type"] == "application/json"

    def test_with_an_ordering_key_it_has_the_key_and_the_number(self, make_webhook: MakeWebhook) -> None:
        request = arrived(make_webhook, make_event(ordering_key="order:1", seq=42))
        assert json.loads(request.body).items() >= {"ordering_key": "order:1", "seq": 42}.items()
        assert request.headers["outbox-seq"] == "42"
        request = arrived(make_webhook, make_event())
        assert not json.loads(request.body).keys() & {"ordering_key", "seq"}
        assert "outbox-seq" not in request.headers

    def test_it_is_the_same_at_every_attempt(self, make_webhook: MakeWebhook) -> None:
        event = make_event(headers={"traceparent": PARENT})
        for form in ("json", "cloudevents", "cloudevents-binary"):
            with Receiver(answers(500), answers()) as receiver:
                webhook = make_webhook(receiver.url, format=form, secret=SECRET)
                deliver_one(webhook, event)
                event.attempt = 2
                at(webhook, event, datetime(2030, 1, 1, tzinfo=UTC))
                first, second = receiver.requests
            assert first.body == second.body
            changed = {name for name in first.headers if first.headers[name] != second.headers[name]}
            assert changed == {"webhook-timestamp", "webhook-signature"}


class TestHeaders:
    def test_every_request_has_these(self, make_webhook: MakeWebhook) -> None:
        event = make_event()
        with Receiver() as receiver:
            deliver_one(make_webhook(receiver.url), event)
            request = receiver.only
            assert request.headers.pop("webhook-timestamp").isdigit()
            expected = {
                "host": f"127.0.0.1:{receiver.port}",
                "content-type": "application/json",
                "content-length": str(len(request.body)),
                "webhook-id": str(event.id),
                "user-agent": f"dramatiq-outbox/{outbox.__version__}",
                "accept": "*/*",
                "accept-encoding": "identity",
            }
        request.pairs = [pair for pair in request.pairs if pair[0] != "webhook-timestamp"]
        assert request.headers == expected
        assert (request.method, request.target) == ("POST", "/hook")

    def test_a_token_is_sent_as_bearer(self, make_webhook: MakeWebhook) -> None:
        assert arrived(make_webhook, token="abc.def").headers["authorization"] == "Bearer abc.def"

    def test_the_users_own_headers_are_sent(self, make_webhook: MakeWebhook) -> None:
        headers = arrived(make_webhook, headers={"X-Api-Version": "2", "Accept": "text/plain"}).headers
        assert (headers["x-api-version"], headers["accept"]) == ("2", "text/plain")

    def test_user_and_password_of_the_url_become_basic_authentication(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            deliver_one(make_webhook(f"http://Aladdin:open%20sesame@127.0.0.1:{receiver.port}/a?b=c%20d&e"))
            request = receiver.only
        assert request.headers["authorization"] == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
        assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
        assert request.target == "/a?b=c%20d&e"

    @pytest.mark.parametrize(
        ("path", "target"),
        [("", "/"), ("?a=b", "/?a=b"), ("/ä/ü?ö=ß", "/%C3%A4/%C3%BC?%C3%B6=%C3%9F"), ("//a/../b;c", "//a/../b;c")],
    )
    def test_a_path_is_sent_as_it_was_written(self, make_webhook: MakeWebhook, path: str, target: str) -> None:
        with Receiver() as receiver:
            deliver_one(make_webhook(f"http://127.0.0.1:{receiver.port}{path}"))
            assert receiver.only.target == target


class TestTrace:
    def test_it_continues_at_the_receiver(self, make_webhook: MakeWebhook) -> None:
        headers = arrived(make_webhook, make_event(headers={"traceparent": PARENT, "tracestate": "a=1, b=2"})).headers
        assert (headers["traceparent"], headers["tracestate"]) == (PARENT, "a=1, b=2")

    @pytest.mark.parametrize(
        "told",
        [
            {"traceparent": "nonsense"},
            {"traceparent": PARENT.upper()},
            {"traceparent": f"{PARENT}\r\nx-injected: 1"},
            {"traceparent": f"{PARENT}\n"},
            {"traceparent": 1},
            {"tracestate": "a=1"},
        ],
    )
    def test_an_invalid_traceparent_is_left_out(self, make_webhook: MakeWebhook, told: dict[str, Any]) -> None:
        assert (
            not {"traceparent", "tracestate", "x-injected"}
            & arrived(make_webhook, make_event(headers=told)).headers.keys()
        )

    @pytest.mark.parametrize("state", ["a=1\r\nx-injected: 1", "ä=1", "", " ", "x" * 513, ["a"], None])
    def test_an_invalid_tracestate_is_left_out(self, make_webhook: MakeWebhook, state: Any) -> None:
        headers = arrived(make_webhook, make_event(headers={"traceparent": PARENT, "tracestate": state})).headers
        assert headers["traceparent"] == PARENT
        assert not {"tracestate", "x-injected"} & headers.keys()


class TestSignature:
    def test_the_reference_implementation_accepts_it(self, make_webhook: MakeWebhook) -> None:
        event = make_event({"text": "Grüße, 世界"})
        request = arrived(make_webhook, event, secret=SECRET)
        assert Reference(SECRET).verify(request.body, request.headers)["data"] == event.payload

    @pytest.mark.parametrize("form", ["json", "cloudevents", "cloudevents-binary"])
    def test_our_own_verify_accepts_it(self, make_webhook: MakeWebhook, form: str) -> None:
        event = make_event()
        request = arrived(make_webhook, event, secret=SECRET, format=form)
        assert webhooks.verify(request.pairs, request.body, SECRET) == str(event.id)

    def test_each_of_several_secrets_signs(self, make_webhook: MakeWebhook) -> None:
        request = arrived(make_webhook, secret=[SECRET, OTHER_SECRET])
        assert len(request.headers["webhook-signature"].split(" ")) == 2
        for secret in (SECRET, OTHER_SECRET):
            Reference(secret).verify(request.body, request.headers)
            webhooks.verify(request.headers, request.body, secret)

    def test_without_a_secret_there_is_none(self, make_webhook: MakeWebhook) -> None:
        headers = arrived(make_webhook).headers
        assert "webhook-signature" not in headers
        assert "webhook-id" in headers

    def test_its_timestamp_is_by_the_databases_clock_so_that_a_host_with_a_wrong_clock_signs_validly(
        self, make_webhook: MakeWebhook
    ) -> None:
        moment = datetime(2030, 5, 6, 7, 8, 9, 999_000, tzinfo=UTC)
        with Receiver() as receiver:
            at(make_webhook(receiver.url, secret=SECRET), make_event(), moment)
            request = receiver.only
        assert int(request.headers["webhook-timestamp"]) - int(moment.timestamp()) in (0, 1)
        webhooks.verify(request.headers, request.body, SECRET, now=moment, tolerance=timedelta(seconds=2))

    def test_each_event_has_its_own_signature(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            webhook = make_webhook(receiver.url, secret=SECRET)
            events = [make_event({"number": number}) for number in range(20)]
            deliver(webhook, events, at_once=4)
            ids = {webhooks.verify(request.headers, request.body, SECRET) for request in receiver.requests}
        assert ids == {str(event.id) for event in events}
