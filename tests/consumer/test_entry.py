"""An entry is read as the event that it was written from."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import outbox
from outbox.consumer.entry import Entry, event_of
from outbox.core import Outbox
from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.destinations.protocol import Lease
from outbox.events.event import Event
from tests.consumer.streams import MakeConsumer, Stream, consume, fields
from tests.support.servers import Redis
from tests.support.table import claimed, emit_one

ALL = (
    "id",
    "event_type",
    "aggregate_type",
    "aggregate_id",
    "body",
    "payload",
    "headers",
    "correlation_id",
    "tenant_id",
    "ordering_key",
    "created_at",
)


LIMIT = 1_000


def read(**others: Any) -> Event:
    """Read an entry with these fields; None leaves one out."""
    given = {name: value for name, value in (fields() | others).items() if value is not None}
    raw = {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in given.items()}
    return event_of(Entry("1-0", raw), max_deliveries=5, max_payload_bytes=LIMIT)


class TestWhatWasEmitted:
    def test_comes_out_of_the_stream_to_the_byte(
        self, box: Outbox, redis_server: Redis, stream: Stream, make_consumer: MakeConsumer
    ) -> None:
        emit_one(
            "user.created",
            aggregate_type="Üser",
            aggregate_id="7/ß",
            payload={"name": "Žofia ☃ 🜁", "zeros": 1.50, "big": 2**70, "b": {"z": 1, "a": "\\ \n"}, "a": []},
            headers={"trace": "ø", "n": [1]},
            correlation_id="çorr",
            tenant_id="ténant",
            ordering_key="çlé",
        )
        emit_one()
        emitted = sorted(claimed(box).events, key=lambda event: event.seq)
        destination = outbox.RedisStream("bus", url=redis_server.url, stream=stream.key)
        outcomes = dict(destination.deliver(iter(emitted), Lease.lasting(60)))
        assert set(outcomes.values()) == {DELIVERED_OUTCOME}
        received: list[Event] = []
        box.registry.handler("*")(received.append)
        consume(make_consumer(), until=lambda: len(received) == 2)
        for sent, came in zip(emitted, received, strict=True):
            assert [getattr(sent, name) for name in ALL] == [getattr(came, name) for name in ALL]
            assert (came.attempt, came.max_attempts) == (1, 5)
        assert [came.seq for came in received] == [emitted[0].seq, 0], "only an ordering key makes a number matter"

    def test_has_its_types(self) -> None:
        event = read(headers='{"a":1}')
        assert isinstance(event.id, UUID)
        assert event.created_at == datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
        assert (event.headers, event.correlation_id, event.tenant_id) == ({"a": 1}, None, None)
        assert event.idempotency_key == str(event.id)
        assert event.progress == {}

    def test_may_have_a_time_in_another_zone(self) -> None:
        moment = read(time="2026-01-31T17:45:00+05:45").created_at
        assert (moment, moment.utcoffset()) == (datetime(2026, 1, 31, 12, tzinfo=UTC), timedelta(0))

    def test_can_be_forwarded_unchanged(self) -> None:
        from outbox.destinations.stream import fields as sent_on

        given = fields({"a": 1}, headers='{"b":2}', tenant_id="t", correlation_id="c")
        assert {name: value.decode() for name, value in sent_on(read(**given)).items()} == given


class TestWhatCanNotBeRead:
    @pytest.mark.parametrize("name", ["id", "type", "aggregate_type", "aggregate_id", "time", "data"])
    @pytest.mark.parametrize("value", [None, ""])
    def test_lacks_a_field(self, name: str, value: str | None) -> None:
        with pytest.raises(outbox.InvalidMessage, match=f"it has no '{name}'"):
            read(**{name: value})

    @pytest.mark.parametrize(
        "wrong",
        [
            {"id": "7"},
            {"data": "{"},
            {"data": "[]"},
            {"data": "null"},
            {"data": '"text"'},
            {"data": b'{"a":"\xff"}'},
            {"data": '{"a":' * 100_000},
            {"headers": "nonsense"},
            {"headers": "[]"},
            {"headers": ""},
            {"time": "yesterday"},
            {"time": "2026-01-31T12:00:00"},
            {"type": b"\xff"},
            {"tenant_id": b"\xff"},
        ],
        ids=lambda wrong: str(wrong)[:30],
    )
    def test_has_an_invalid_field(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(outbox.InvalidMessage, match="can't be read as an event"):
            read(**wrong)

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            ({"data": '{"a":NaN}'}, "'data' can't be read as JSON: NaN is not a number that JSON can carry"),
            ({"data": '{"a":[-Infinity]}'}, "-Infinity is not a number"),
            ({"data": '{"a":1e999}'}, "the number 1e999 is too large"),
            ({"data": '{"a":"\\u0000"}'}, "'data' contains a NUL character"),
            ({"data": '{"\\u0000":1}'}, "'data' contains a NUL character"),
            ({"data": '{"a":"\\ud800"}'}, "'data' contains a lone surrogate"),
            ({"data": '{"a":' * 101 + "1" + "}" * 101}, "'data' is nested too deeply"),
            ({"data": '{"a":"' + "x" * (LIMIT - 7) + '"}'}, f"'data' is {LIMIT + 1} bytes of JSON; the limit"),
            ({"headers": '{"a":"' + "x" * LIMIT + '"}'}, "'headers' is 1008 bytes of JSON"),
            ({"headers": '{"a":"\\u0000"}'}, "'headers' contains a NUL character"),
            ({"aggregate_id": "7\0"}, "'aggregate_id' contains a NUL character"),
            ({"aggregate_id": "7" * 101}, "'aggregate_id' is 101 characters long; the limit is 100"),
            ({"aggregate_type": "A" * 101}, "'aggregate_type' is 101 characters long"),
            ({"type": "a" * 101}, "'type' is 101 characters long"),
            ({"type": "note.*"}, "'type' must not contain"),
            ({"tenant_id": "t" * 256}, "'tenant_id' is 256 characters long; the limit is 255"),
            ({"correlation_id": "c\0"}, "'correlation_id' contains a NUL character"),
            ({"seq": "-1"}, "'seq' is not from 0 to"),
            ({"seq": "9" * 19 + "0"}, "'seq' is not from 0 to"),
        ],
        ids=lambda value: str(value)[:30],
    )
    def test_exceeds_a_limit_of_emit(self, wrong: dict[str, Any], reason: str) -> None:
        with pytest.raises(outbox.InvalidMessage, match=re.escape(reason)):
            read(**wrong)

    def test_is_within_the_limits_of_emit(self) -> None:
        longest = {"data": '{"a":"' + "x" * (LIMIT - 8) + '"}', "type": "a" * 100, "tenant_id": "t" * 255}
        assert len(read(**longest).body) == LIMIT
        assert read(data='{"a":"\\u00fc \\\\u0000 \\ud83d\\ude00"}').payload == {"a": "ü \\u0000 😀"}
        assert read(data='{"a":' * 100 + "1" + "}" * 100).payload

    def test_numbers_are_kept_as_they_were_written(self) -> None:
        text = '{"n": 1.50, "big": 1180591620717411303424}'
        assert read(data=text).body == text.encode()
        assert read(data=text).payload == json.loads(text)
