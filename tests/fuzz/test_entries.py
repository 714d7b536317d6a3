"""Whatever stands in a stream is an event whose every field can be read, or is parked; and the next one is consumed."""

import json
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outbox
from outbox.consumer.entry import Entry, event_of
from outbox.errors import InvalidMessage
from outbox.events.new_event import NewEvent
from outbox.events.validate import validate
from outbox.settings import Settings
from tests.consumer.streams import MakeConsumer, Stream, consume, fields, on_any_database
from tests.support.thoroughness import thorough

WHOLE = {name.encode(): value.encode() for name, value in fields({"a": 1}).items()}
NAMES = [*WHOLE, b"headers", b"correlation_id", b"tenant_id", b"unknown"]
NASTY = [
    b"", b" ", b"\x00", b"\xff", b"null", b"[]", b"{}", b'"x"', b"NaN", b'{"a":NaN}', b'{"a":"\\ud800"}', b"{" * 2_000,
    b'{"a":' * 500 + b"1" + b"}" * 500, b'{"a":' + b"9" * 5_000 + b"}", b'{"a":1e999}', b'{"a":1}x', b"\xef\xbb\xbf{}",
    b"2026-01-01", b"2026-01-01T00:00:00", b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59",
    b"2026-01-01T00:00:00+99:99", b"2026-W01-1T00:00+00:00", b"20260101T000000Z", b"x" * 300,
    b"{01900000-0000-7000-8000-000000000000}", b"urn:uuid:01900000-0000-7000-8000-000000000000", b"0" * 32, b"0" * 31,
]  # fmt: skip

values = st.sampled_from(NASTY) | st.binary(max_size=60)
entries = st.dictionaries(st.sampled_from(NAMES), values, max_size=3).map(lambda odd: WHOLE | odd) | st.dictionaries(
    st.sampled_from(NAMES) | st.binary(max_size=10), values, max_size=8
)


@pytest.mark.parametrize("name", NAMES)
def test_no_odd_value_in_a_field_makes_an_event_that_can_not_be_read(name: bytes) -> None:
    for value in NASTY:
        check(WHOLE | {name: value})


@thorough(300)
@given(raw=entries)
def test_an_entry_is_an_event_whose_every_field_can_be_read_or_is_invalid(raw: dict[bytes, bytes]) -> None:
    check(raw)


def check(raw: dict[bytes, bytes]) -> None:
    try:
        event = event_of(Entry("1-1", raw), 5, 256 * 1024)
    except InvalidMessage:
        return
    assert isinstance(event.headers, dict)
    assert event.created_at.tzinfo is UTC
    assert event.body == raw[b"data"]
    assert str(event.id) in repr(event)
    assert json.dumps(event.payload) == json.dumps(json.loads(raw[b"data"]))
    # A handler can emit it again.
    validate(
        NewEvent(
            event.aggregate_type,
            event.aggregate_id,
            event.event_type,
            event.payload,
            headers=event.headers,
            correlation_id=event.correlation_id,
            tenant_id=event.tenant_id,
        ),
        Settings(),
    )


@on_any_database
def test_whatever_can_not_be_read_is_parked_and_what_comes_after_it_is_consumed(
    stream: Stream, make_consumer: MakeConsumer
) -> None:
    """All of it in one stream, one good entry behind the other."""
    done: list[Any] = []
    outbox.handler("*", name="reader")(lambda event: done.append((event.id, event.payload, event.created_at)))
    good = []

    @thorough(60, at_most=100)  # they are consumed together, within a test's patience
    @given(raw=entries.filter(bool))
    def add(raw: dict[bytes, bytes]) -> None:
        stream.client.xadd(stream.key, raw)
        good.append(stream.add())

    add()
    consumer = make_consumer()
    consume(consumer, until=lambda: stream.left() == 0)
    assert set(good) <= {id for id, _, _ in done}
    assert len(stream.parked()) == consumer.counts.parked > 10
