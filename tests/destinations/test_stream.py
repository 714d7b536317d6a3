"""A Redis stream: what an entry holds, which stream it is added to, and what happens when something fails."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import outbox
from outbox.core import Outbox
from outbox.destinations import redis_commands
from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.destinations.stream import SHORTEST_TIMEOUT
from outbox.events.event import Event
from outbox.storage.redis_client import is_unavailable
from tests.support.flights import flights
from tests.support.program import run_python
from tests.support.servers import Redis, RedisServer
from tests.support.table import (
    another,
    at_work,
    becomes_true,
    claimed,
    emit,
    emit_one,
    error_of,
    expire_leases,
    let_pass,
    statuses,
)
from tests.support.table import stored as row_of

UNREACHABLE = "redis://127.0.0.1:1/0"
HIDDEN = "redis://:hush@127.0.0.1:1/0"


@pytest.fixture
def url(sqlite_url: str) -> str:
    """All but the bytes is the same on every database."""
    return sqlite_url


@pytest.fixture
def client(redis_server: Redis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def prefix(client: redis.Redis) -> Iterator[str]:
    """Return what the keys of this test begin with."""
    prefix = f"test-{uuid.uuid4().hex}"
    yield prefix
    for key in client.scan_iter(f"{prefix}*"):
        client.delete(key)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that the test may break."""
    with RedisServer() as server:
        yield server


def make(server: Redis, stream: str = "events", **options: Any) -> outbox.RedisStream:
    return outbox.RedisStream("stream", url=server.url, stream=stream, **options)


def deliver(stream: outbox.RedisStream, events: list[Event], seconds: float = 60) -> list[Outcome]:
    """Return the outcomes, in the order of the events."""
    found = dict(stream.deliver(iter(events), Lease.lasting(seconds)))
    return [found[event] for event in events]


def entries(client: redis.Redis, stream: str) -> list[dict[bytes, bytes]]:
    found: Any = client.xrange(stream)
    return [fields for _, fields in found]


def events_of(box: Outbox) -> list[Event]:
    return sorted(claimed(box).events, key=lambda event: event.seq)


class TestAnEntry:
    @pytest.fixture(params=["postgres", "sqlite"])
    def url(self, request: pytest.FixtureRequest) -> str:
        return str(request.getfixturevalue(f"{request.param}_url"))

    def test_has_the_fields_that_are_documented_to_the_byte(
        self, box: Outbox, redis_server: Redis, client: redis.Redis, prefix: str
    ) -> None:
        payload = {"name": "Žofia ☃ 🜁", "zeros": 1.50, "big": 2**70, "b": {"z": 1, "a": "\\ \n"}, "a": []}
        emit_one(
            "user.created",
            aggregate_type="Üser",
            aggregate_id="7/ß",
            payload=payload,
            headers={"trace": "ø", "n": [1]},
            correlation_id="çorr",
            tenant_id="ténant",
        )
        (event,) = events_of(box)
        assert deliver(make(redis_server, prefix), [event]) == [DELIVERED_OUTCOME]
        assert entries(client, prefix) == [
            {
                b"id": str(event.id).encode(),
                b"type": b"user.created",
                b"aggregate_type": "Üser".encode(),
                b"aggregate_id": "7/ß".encode(),
                b"time": event.created_at.isoformat().encode(),
                b"tenant_id": "ténant".encode(),
                b"correlation_id": "çorr".encode(),
                b"headers": '{"trace":"ø","n":[1]}'.encode(),
                b"data": json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode(),
            }
        ]

    def test_lacks_what_the_event_does_not_have(
        self, box: Outbox, redis_server: Redis, client: redis.Redis, prefix: str
    ) -> None:
        emit_one()
        deliver(make(redis_server, prefix), events_of(box))
        ((entry),) = entries(client, prefix)
        assert list(entry) == [b"id", b"type", b"aggregate_type", b"aggregate_id", b"time", b"data"]
        assert entry[b"data"] == b"{}"

    def test_is_added_in_the_order_of_the_events_and_the_whole_batch_in_one_round_trip(
        self, box: Outbox, redis_server: Redis, client: redis.Redis, prefix: str
    ) -> None:
        stream = make(redis_server, prefix)
        emit(100)
        first, *others = events_of(box)
        deliver(stream, [first])  # connects
        with flights() as sent:
            assert deliver(stream, others) == [DELIVERED_OUTCOME] * 99
        assert len(sent) == 1
        assert [entry[b"aggregate_id"] for entry in entries(client, prefix)] == [b"%d" % n for n in range(100)]

    def test_is_added_by_a_worker_for_the_wanted_event_types(
        self, box: Outbox, redis_server: Redis, client: redis.Redis, prefix: str
    ) -> None:
        outbox.add_destination(make(redis_server, prefix, events=["order.*", "user.created"]))
        outbox.ignore("user.*")
        for event_type in ("order.placed", "user.created", "user.deleted"):
            emit_one(event_type)
        box.process_pending_events()
        assert statuses() == {"delivered": 3}
        assert [entry[b"type"] for entry in entries(client, prefix)] == [b"order.placed", b"user.created"]

    def test_after_a_crash_comes_a_second_time_with_the_same_id_and_bytes(
        self, box: Outbox, redis_server: Redis, client: redis.Redis, prefix: str
    ) -> None:
        stream = make(redis_server, prefix)
        outbox.add_destination(stream)
        event = emit_one(payload={"n": 1})
        deliver(stream, events_of(box))  # and dies before that is written down
        expire_leases()
        box.process_pending_events()
        assert statuses() == {"delivered": 1}
        first, second = entries(client, prefix)
        assert first == second
        assert first[b"id"] == str(event.id).encode()


class TestTheStream:
    def test_may_depend_on_the_event(self, box: Outbox, redis_server: Redis, client: redis.Redis, prefix: str) -> None:
        stream = make(redis_server, prefix + ".{{}}.{aggregate_type}.{event_type}.{tenant_id}.{aggregate_id}")
        emit_one("user.created", aggregate_type="User", tenant_id="acme")
        emit_one("order.placed")
        deliver(stream, events_of(box))
        names = {f"{prefix}.{{}}.User.user.created.acme.0", f"{prefix}.{{}}.Order.order.placed.-.0"}
        assert set(client.scan_iter(f"{prefix}*")) == {name.encode() for name in names}

    @pytest.mark.parametrize(
        "stream",
        [
            "",
            None,
            "a.{",
            "a.}",
            "{}",
            "{0}",
            "{id}",
            "{payload}",
            "{event_type.__class__}",
            "{event_type[0]}",
            "{event_type!r}",
            "{event_type:>9}",
            "{event_type:{tenant_id}}",
        ],
    )
    def test_is_refused_unless_it_is_text_with_known_fields(self, stream: Any) -> None:
        with pytest.raises(outbox.RegistrationError, match="stream"):
            outbox.RedisStream("s", url=HIDDEN, stream=stream)

    def test_names_the_fields_that_there_are(self) -> None:
        with pytest.raises(outbox.RegistrationError) as raised:
            outbox.RedisStream("s", url=HIDDEN, stream="{id}")
        assert "{aggregate_type}, {aggregate_id}, {event_type}, {tenant_id}" in str(raised.value)

    def test_keeps_all_entries_or_about_maxlen(
        self, box: Outbox, redis_server: Redis, client: redis.Redis, prefix: str
    ) -> None:
        emit(600)
        events = list(claimed(box, 600).events)
        deliver(make(redis_server, f"{prefix}.all"), events)
        deliver(make(redis_server, f"{prefix}.few", maxlen=50), events)
        assert client.xlen(f"{prefix}.all") == 600
        assert 50 <= client.xlen(f"{prefix}.few") < 300


class TestAnInvalid:
    def test_stream_affects_its_own_events_only(
        self, box: Outbox, redis_server: Redis, client: redis.Redis, prefix: str
    ) -> None:
        outbox.add_destination(make(redis_server, prefix + ".{aggregate_type}"))
        client.set(f"{prefix}.Bad", "no stream")
        good, bad, fine = (emit_one(aggregate_type=name) for name in ("Good", "Bad", "Good"))
        box.process_pending_events()
        assert [row_of(event).status for event in (good, bad, fine)] == ["delivered", "pending", "delivered"]
        assert "WRONGTYPE" in error_of(bad)
        assert row_of(bad).attempts == 1

    def test_event_does_not_affect_the_others(
        self, box: Outbox, redis_server: Redis, client: redis.Redis, prefix: str
    ) -> None:
        emit(3)
        events = events_of(box)
        events[1]._headers_text = "nonsense"
        first, second, third = deliver(make(redis_server, prefix), events)
        assert (first, third) == (DELIVERED_OUTCOME, DELIVERED_OUTCOME)
        assert isinstance(second, Retry)
        assert "JSONDecodeError" in second.error
        assert client.xlen(prefix) == 2


def out_of_memory(server: RedisServer) -> None:
    configure(server, "maxmemory", 1)


def read_only(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.replicaof("127.0.0.1", 1)


def without_master(server: RedisServer) -> None:
    configure(server, "replica-serve-stale-data", "no")
    read_only(server)


def without_replicas(server: RedisServer) -> None:
    configure(server, "min-replicas-to-write", 1)


def locked(server: RedisServer) -> None:
    configure(server, "requirepass", "hush")


def configure(server: RedisServer, option: str, value: Any) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set(option, value)


class TestARedisThatCanNotBeUsed:
    @pytest.mark.parametrize(
        "harm",
        [RedisServer.kill, RedisServer.pause, out_of_memory, read_only, without_master, without_replicas, locked],
        ids=lambda harm: harm.__name__,
    )
    def test_costs_no_attempt_and_all_is_delivered_later(
        self, box: Outbox, own_redis: RedisServer, harm: Callable[[RedisServer], None]
    ) -> None:
        outbox.add_destination(make(own_redis, timeout=0.3))
        events = emit(3)
        harm(own_redis)
        box.process_pending_events()
        assert statuses() == {"pending": 3}
        assert [row_of(event).attempts for event in events] == [0, 0, 0]
        own_redis.stop()
        own_redis.start()
        let_pass(hours=2)
        another(box).process_pending_events()
        assert statuses() == {"delivered": 3}

    def test_because_it_died_before_it_answered(self, box: Outbox, own_redis: RedisServer) -> None:
        outbox.add_destination(make(own_redis))
        first = emit_one()
        box.process_pending_events()
        events = emit(3)
        own_redis.pause()
        with flights() as sent, at_work(box) as work:
            becomes_true(lambda: sent)
            own_redis.kill()
            work.result()
        assert statuses() == {"delivered": 1, "pending": 3}
        assert {row_of(event).attempts for event in events} == {0}
        assert row_of(first).attempts == 1

    def test_is_waited_for_no_longer_than_the_lease_lasts(self, box: Outbox, own_redis: RedisServer) -> None:
        stream = make(own_redis, timeout=600)
        emit(2)
        events = events_of(box)
        own_redis.pause()
        for seconds in (0.2, 0.0):
            began_at = time.monotonic()
            assert all(isinstance(each, outbox.Unavailable) for each in deliver(stream, events, seconds))
            assert time.monotonic() - began_at < 30

    @pytest.mark.parametrize(("lease", "patience"), [(60.0, 7.0), (7.5, 7.0), (2.0, 2.0), (0.0, SHORTEST_TIMEOUT)])
    def test_may_take_long_to_reply_within_the_lease(self, lease: float, patience: float) -> None:
        stream = outbox.RedisStream("s", url=UNREACHABLE, timeout=7)
        with stream._client_within(Lease.lasting(lease)) as client:
            given = client.connection_pool.connection_kwargs["socket_timeout"]
        assert given == pytest.approx(patience, abs=0.4)
        assert given > 0

    @pytest.mark.parametrize("code", ["BUSY", "MISCONF", "NOREPLICAS", "LOADING", "TRYAGAIN", "CLUSTERDOWN"])
    def test_is_recognised_by_its_replies(self, code: str) -> None:
        parser: Any = redis.connection.DefaultParser
        assert is_unavailable(parser.parse_error(f"{code} because"))
        assert not is_unavailable(parser.parse_error(f"{code}ISH because"))


class TestCommands:
    def test_are_packed_in_the_same_way_with_and_without_hiredis(self, monkeypatch: pytest.MonkeyPatch) -> None:
        arguments = ("XADD", "événements", "*", "data", '{"größe":"💥"}'.encode(), "", b"\r\n\0")
        packed = redis_commands.packed(*arguments)
        monkeypatch.setattr(redis_commands, "HAS_HIREDIS", False)
        assert redis_commands.packed(*arguments) == packed

    def test_are_sent_in_pieces_of_limited_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_commands, "PIECE_BYTES", 4)
        assert list(redis_commands._pieces([b"ab", b"cd", b"e", b"fghij", b"k"])) == [b"abcd", b"efghij", b"k"]


class TestAnInterrupt:
    def test_between_request_and_reply_leaves_no_reply_for_the_next_request(
        self, box: Outbox, redis_server: Redis, client: redis.Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.set(f"{prefix}.Bad", "no stream")
        stream = make(redis_server, prefix + ".{aggregate_type}")
        emit_one(aggregate_type="Good")
        emit_one(aggregate_type="Bad")
        good, bad = events_of(box)
        with monkeypatch.context() as patch:
            patch.setattr(redis_commands, "_reply", interrupted)
            with pytest.raises(KeyboardInterrupt):
                deliver(stream, [good])
        # As if the reply were still on its way.
        monkeypatch.setattr(redis.connection.Connection, "can_read", lambda *_, **__: False)
        (outcome,) = deliver(stream, [bad])
        assert isinstance(outcome, Retry)


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


class TestTheConstructor:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": ""},
            {"name": " "},
            {"name": 7},
            {"url": "hush"},
            {"url": "http://:hush@h"},
            {"url": "redis://:hush/hush@h:1/0"},
            {"url": "redis://:hush@h/0?nonsense=1"},
            {"url": None},
            {"url": ["hush"]},
            {"maxlen": 0},
            {"maxlen": True},
            {"maxlen": 1.5},
            {"timeout": 0},
            {"timeout": -1},
            {"timeout": True},
            {"timeout": "5"},
            {"timeout": float("inf")},
            {"timeout": float("nan")},
            {"events": []},
            {"events": "order.*"},
            {"events": ["*.placed"]},
            {"events": 7},
            {"concurrency": 0},
            {"per_second": 0},
        ],
        ids=str,
    )
    def test_refuses_what_can_not_work_and_repeats_no_address(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(outbox.RegistrationError) as raised:
            outbox.RedisStream(**{"name": "s", "url": HIDDEN} | wrong)
        assert "hush" not in str(raised.value)
        assert raised.value.__cause__ is None

    def test_connects_to_nothing_and_shows_no_address(self) -> None:
        stream = outbox.RedisStream("s", url=HIDDEN, stream="events.{tenant_id}", concurrency=2, per_second=0.5)
        assert repr(stream) == "<RedisStream 's' to 'events.{tenant_id}'>"
        assert stream.limits == outbox.Limits(2, 0.5)

    def test_without_redis_installed_says_what_to_install(self) -> None:
        said = run_python(
            f"""
import sys
sys.modules["redis"] = None
import outbox
try:
    outbox.RedisStream("s", url={UNREACHABLE!r})
except outbox.RegistrationError as error:
    print(error)
"""
        )
        assert said == "A RedisStream can't be made: redis is not installed: pip install 'dramatiq-outbox[redis]'\n"
