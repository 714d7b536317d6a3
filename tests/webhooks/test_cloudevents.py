"""CloudEvents: the official SDK reads what a webhook sends."""

import json
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_binary_event, from_http_event, from_structured_event

from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.events import cloudevents
from outbox.events.event import Event
from tests.support.receiver import Received, Receiver
from tests.webhooks.deliveries import NOW, MakeWebhook, deliver_one, make_event

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PAYLOAD = '{"b": 1.50,\n "a": "Grüße"}'


def full() -> Event:
    return make_event(
        PAYLOAD,
        aggregate_type="Bücher",
        aggregate_id='7 % "x" \N{SNOWMAN}\n',
        event_type="order.placed",
        tenant_id="Zürich/1",
        correlation_id="a b",
        headers={"traceparent": PARENT, "tracestate": "a=1", "other": "not sent"},
    )


def arrived(make_webhook: MakeWebhook, event: Event, form: str, **options: Any) -> Received:
    with Receiver() as receiver:
        assert deliver_one(make_webhook(receiver.url, format=form, **options), event) == DELIVERED_OUTCOME
        return receiver.only


def check(understood: BaseCloudEvent, event: Event) -> None:
    assert understood.get_specversion() == "1.0"
    assert understood.get_id() == str(event.id)
    assert understood.get_source() == "/shop"
    assert understood.get_type() == "order.placed"
    assert understood.get_subject() == 'Bücher/7 % "x" \N{SNOWMAN}\n'
    assert understood.get_time() == NOW
    assert understood.get_datacontenttype() == "application/json"
    assert understood.get_extension("tenantid") == "Zürich/1"
    assert understood.get_extension("correlationid") == "a b"
    assert understood.get_extension("traceparent") == PARENT
    assert understood.get_extension("tracestate") == "a=1"
    assert understood.get_extension("other") is None
    assert understood.get_data() == event.payload


def test_structured(make_webhook: MakeWebhook) -> None:
    event = full()
    request = arrived(make_webhook, event, "cloudevents", source="/shop")
    assert request.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    check(from_structured_event(HTTPMessage(request.headers, request.body)), event)
    check(from_http_event(HTTPMessage(request.headers, request.body)), event)
    assert request.body.endswith(b',"data":' + PAYLOAD.encode() + b"}"), "the payload's own bytes"


def test_binary(make_webhook: MakeWebhook) -> None:
    event = full()
    request = arrived(make_webhook, event, "cloudevents-binary", source="/shop")
    assert request.headers["content-type"] == "application/json"
    assert request.body == PAYLOAD.encode()
    check(from_binary_event(HTTPMessage(request.headers, request.body)), event)
    check(from_http_event(HTTPMessage(request.headers, request.body)), event)


def test_in_headers_everything_but_visible_ascii_is_encoded_and_so_are_quotes_and_percent_signs(
    make_webhook: MakeWebhook,
) -> None:
    headers = arrived(make_webhook, full(), "cloudevents-binary").headers
    assert headers["ce-subject"] == "B%C3%BCcher/7%20%25%20%22x%22%20%E2%98%83%0A"
    assert headers["ce-tenantid"] == "Z%C3%BCrich/1"
    assert headers["ce-source"] == "/outbox"
    assert headers["ce-time"] == "2026-01-31T12:00:00.250000+00:00"


@pytest.mark.parametrize("form", ["cloudevents", "cloudevents-binary"])
def test_an_ordering_key_and_a_number_that_sorts_as_text(make_webhook: MakeWebhook, form: str) -> None:
    seen = []
    for seq in (9, 10):
        request = arrived(make_webhook, make_event(ordering_key="order:1", seq=seq), form)
        attributes = from_http_event(HTTPMessage(request.headers, request.body)).get_attributes()
        assert attributes["partitionkey"] == "order:1"
        seen.append(attributes["sequence"])
    assert seen == sorted(seen)
    assert [int(each) for each in seen] == [9, 10]


@pytest.mark.parametrize("form", ["cloudevents", "cloudevents-binary"])
def test_what_an_event_does_not_have_is_left_out(make_webhook: MakeWebhook, form: str) -> None:
    request = arrived(make_webhook, make_event(headers={"traceparent": 7, "tracestate": ""}), form)
    understood = from_http_event(HTTPMessage(request.headers, request.body))
    known = {"specversion", "id", "source", "type", "subject", "time", "datacontenttype"}
    assert understood.get_attributes().keys() == known


def test_the_same_event_is_the_same_bytes() -> None:
    event = full()
    assert cloudevents.structured(event, "/shop") == cloudevents.structured(event, "/shop")
    assert json.loads(cloudevents.structured(event, "/shop"))["data"] == event.payload
