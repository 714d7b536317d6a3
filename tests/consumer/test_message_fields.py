"""A broker's message is read as the event that it was made from, in each format; anything else is refused."""

import json
from typing import Any

import pytest

from outbox.buses.message import FORMATS, MessageFormat
from outbox.buses.rabbit import PREFIX
from outbox.consumer.entry import Entry, event_of
from outbox.consumer.message_fields import fields_of
from outbox.errors import InvalidMessage
from outbox.events.event import Event
from tests.support.received_event import event

LIMIT = 1_000
SAME = (
    "id", "event_type", "aggregate_type", "aggregate_id", "body", "correlation_id", "tenant_id", "ordering_key",
    "created_at", "seq",
)  # fmt: skip


def read(headers: dict[str, Any], body: bytes, content_type: str | None = "application/json") -> Event:
    return event_of(Entry("1", fields_of(headers, body, content_type, LIMIT)), 5, LIMIT)


@pytest.mark.parametrize("format", FORMATS)
def test_a_message_is_the_event_again_to_the_byte(format: str) -> None:
    sent = event(tenant_id="ténant", correlation_id="ç", ordering_key="user:7", seq=7)
    message = MessageFormat(format, "/shop", prefix=PREFIX).make(sent)
    came = read(dict(message.headers), message.body, message.content_type)
    assert {name: getattr(came, name) for name in SAME} == {name: getattr(sent, name) for name in SAME}


@pytest.mark.parametrize("body", [b'{"a":1.50,"b":[ 1 ],"a":2}', b'{"text":"\\u00e9 \xc3\xa9"}', b"{}"])
def test_the_payload_in_an_envelope_stays_as_it_was_written(body: bytes) -> None:
    head = json.dumps(attributes())[:-1].encode()
    assert read({}, head + b' , "data" : ' + body + b" } ").body == body


def attributes(**others: Any) -> dict[str, Any]:
    return {
        "id": "0192d5c0-7a2b-7c3d-8e4f-5a6b7c8d9e0f",
        "type": "note.taken",
        "aggregate_type": "Note",
        "aggregate_id": "1",
        "time": "2026-01-31T12:00:00+00:00",
    } | others


def cloudevent(**others: Any) -> bytes:
    known = {"specversion": "1.0", "id": attributes()["id"], "type": "note.taken", "subject": "Note/1/2"}
    return json.dumps(known | {"time": "2026-01-31T12:00:00Z", "data": {}} | others).encode()


def test_a_cloudevent_may_come_from_another_program() -> None:
    others = {"traceparent": "00-1", "eventversion": "3", "sequence": "0000000000000000007", "other": [1]}
    came = read({}, cloudevent(**others), "application/cloudevents+json")
    assert (came.aggregate_type, came.aggregate_id, came.seq) == ("Note", "1/2", 7)
    assert came.headers == {"traceparent": "00-1", "event_version": 3}


def test_the_attributes_of_a_cloudevent_may_have_the_other_prefix_of_the_binding() -> None:
    given = json.loads(cloudevent())
    headers = {f"cloudEvents:{name}": value for name, value in given.items() if name != "data"}
    assert read(headers, b'{"n":1}').payload == {"n": 1}


@pytest.mark.parametrize(
    ("headers", "body", "content_type", "error"),
    [
        ({}, b"", None, "its body is not a JSON object"),
        ({}, b"[]", None, "its body is not a JSON object"),
        ({}, b'{"id"', None, "its body is not a JSON object"),
        ({}, b'{"id":1', None, "its body is not a JSON object"),
        ({}, b'{"id":1 "b":2}', None, "its body is not a JSON object"),
        ({}, b"{7:1}", None, "its body is not a JSON object"),
        ({}, b'{"id":', None, "Expecting value"),
        ({}, b"\xff{}", None, "can't decode"),
        ({}, b"{}", None, "it has no 'id'"),
        ({}, b"[" * 100_000, None, "at most 12000 are read"),
        ({}, b'{"data":' + b"[" * 11_000, None, "can't be read as an event"),
        ({}, b"{" + b" " * 12_000, None, "at most 12000 are read"),
        (attributes(aggregate_type=7), b"{}", None, "'aggregate_type' is not text"),
        (attributes(id="7"), b"{}", None, "badly formed"),
        (attributes(), b"[]", None, "must be a JSON object"),
        (attributes(), b'{"n": NaN}', None, "NaN is not a number"),
        (attributes(), b'{"n": "' + b"x" * LIMIT + b'"}', None, "1000"),
        (attributes(tenant_id="x" * 300), b"{}", None, "tenant_id"),
        ({}, cloudevent(subject=None), "application/cloudevents+json", "'subject' is not text"),
        ({}, cloudevent(subject="Note"), "application/cloudevents+json", "it has no 'aggregate_id'"),
        ({}, cloudevent(data_base64="eA=="), "application/cloudevents+json", "its data is not JSON"),
        ({}, cloudevent(eventversion="x"), "application/cloudevents+json; charset=utf-8", "invalid literal"),
        ({}, cloudevent(type="\ud800"), "application/cloudevents+json", "surrogates"),
    ],
)
def test_another_message_is_refused(headers: dict[str, Any], body: bytes, content_type: str | None, error: str) -> None:
    with pytest.raises(InvalidMessage, match=error):
        read(headers, body, content_type)
