"""An entry is read as the event that it was written from."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import outbox
from outbox.consumer.stream_entry import StreamEntry, event_of
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
    "created_at",
)


def read(**others: Any) -> Event:
    """Read an entry with these fields; None leaves one out."""
    given = {name: value for name, value in (fields() | others).items() if value is not None}
    raw = {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in given.items()}
    return event_of(StreamEntry("1-0", raw), max_deliveries=5)


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
            assert (came.attempt, came.max_attempts, came.seq) == (1, 5, 0)

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

    def test_numbers_are_kept_as_they_were_written(self) -> None:
        text = '{"n": 1.50, "big": 1180591620717411303424}'
        assert read(data=text).body == text.encode()
        assert read(data=text).payload == json.loads(text)
