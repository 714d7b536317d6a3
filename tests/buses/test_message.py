"""The message for an event, in each format."""

import json

import pytest

import outbox
from outbox.buses.message import FORMATS, MessageFormat
from tests.support.received_event import event


@pytest.mark.parametrize("format", FORMATS)
def test_a_message_is_the_same_each_time(format: str) -> None:
    given = event(headers='{"traceparent":"00-1-2-01"}')
    formatter = MessageFormat(format, "/shop", prefix="ce_")
    assert formatter.make(given) == formatter.make(given)


@pytest.mark.parametrize("format", ["headers", "cloudevents-binary"])
def test_the_body_is_the_payload_to_the_byte_where_attributes_are_headers(format: str) -> None:
    assert MessageFormat(format, "/shop", prefix="ce_").make(event()).body == b'{"zeros":1.50}'


@pytest.mark.parametrize("format", ["json", "cloudevents"])
def test_the_body_contains_the_payload_to_the_byte_otherwise(format: str) -> None:
    message = MessageFormat(format, "/shop", prefix="ce_").make(event())
    assert message.body.endswith(b',"data":{"zeros":1.50}}')
    assert json.loads(message.body)["type"] == "order.placed"


def test_a_traced_delivery_is_continued_by_the_consumer() -> None:
    from opentelemetry.sdk.trace import TracerProvider

    given = event()
    given.span = TracerProvider().get_tracer("test").start_span("send")
    for format in FORMATS:
        message = MessageFormat(format, "/shop", prefix="ce_").make(given)
        trace_id = f"{given.span.get_span_context().trace_id:032x}"
        assert trace_id in message.headers["traceparent"]


def test_a_broker_without_binary_mode_refuses_it() -> None:
    with pytest.raises(outbox.RegistrationError, match="format must be one of 'headers', 'json', 'cloudevents', not"):
        MessageFormat("cloudevents-binary", "/shop", prefix=None)
