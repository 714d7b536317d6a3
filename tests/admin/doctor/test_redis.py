"""The doctor's checks of Redis."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

import outbox
from outbox import current_outbox
from outbox.admin.doctor.check import NOTE, OK, PROBLEM, WARNING
from outbox.core import Outbox
from tests.admin.doctor.findings import advice_of, commands_in, finding_of
from tests.conftest import Configure
from tests.support.servers import RedisServer, free_port
from tests.support.table import becomes_true

# One database is enough: these checks don't depend on it.
once = pytest.mark.parametrize("url", ["sqlite"], indirect=True)

ALL = ("redis", "eviction", "persistence", "memory")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client
        client.replicaof("NO", "ONE")
        client.flushall()
        for name, value in {"maxmemory": 0, "maxmemory-policy": "noeviction", "appendonly": "no", "save": ""}.items():
            client.config_set(name, value)


@pytest.fixture
def box(configure: Configure, server: RedisServer, client: Any) -> Outbox:
    return configure(redis_url=server.url)


@pytest.fixture
def with_stream(box: Outbox, server: RedisServer) -> Outbox:
    outbox.add_destination(outbox.RedisStream("events", url=server.url))
    return box


def execute(client: Any, command: str) -> None:
    client.execute_command(*command.split())


@once
def test_a_redis_with_persistence_and_without_eviction_is_fine(box: Outbox, client: Any) -> None:
    client.config_set("appendonly", "yes")
    assert [finding_of(box, each).level for each in ALL] == [OK] * 4


@once
def test_an_unreachable_redis_is_a_problem_and_its_password_is_not_printed(configure: Configure) -> None:
    box = configure(redis_url=f"redis://:hidden-word@127.0.0.1:{free_port()}/0")
    found = finding_of(box, "redis")
    assert (found.level, "OUTBOX_REDIS_URL" in advice_of(found)) == (PROBLEM, True)
    assert "hidden-word" not in repr(found)


@once
def test_a_refused_password_is_a_problem_and_is_not_printed(configure: Configure, server: RedisServer) -> None:
    box = configure(redis_url=server.url.replace("redis://", "redis://nobody:hidden-word@"))
    found = finding_of(box, "redis")
    assert found.level == PROBLEM
    assert "hidden-word" not in repr(found)


@once
def test_an_old_redis_is_a_problem(box: Outbox) -> None:
    found = finding_of(box, "redis", oldest_redis=(99, 1))
    assert (found.level, "needs 99.1 or later" in found.what) == (PROBLEM, True)


@once
def test_a_replica_is_a_problem(box: Outbox, client: Any) -> None:
    client.replicaof("127.0.0.1", free_port())
    found = finding_of(box, "redis")
    assert (found.level, "the address of a replica" in found.what) == (PROBLEM, True)


@once
@pytest.mark.parametrize(("policy", "level"), [("allkeys-lru", PROBLEM), ("volatile-ttl", WARNING)])
def test_eviction_is_reported_and_the_advice_fixes_it(box: Outbox, client: Any, policy: str, level: str) -> None:
    client.config_set("maxmemory-policy", policy)
    assert finding_of(box, "eviction").level == OK  # it is never full
    client.config_set("maxmemory", "1gb")
    found = finding_of(box, "eviction")
    assert (found.level, policy in found.what) == (level, True)
    execute(client, commands_in(found)[0])
    assert finding_of(box, "eviction").level == OK


@once
def test_eviction_names_the_destinations_whose_events_it_would_lose(with_stream: Outbox, client: Any) -> None:
    client.config_set("maxmemory-policy", "allkeys-random")
    client.config_set("maxmemory", "1gb")
    assert "Events that were delivered to events are lost" in finding_of(with_stream, "eviction").what


@once
def test_without_persistence_wake_ups_are_lost_which_is_a_note(box: Outbox) -> None:
    found = finding_of(box, "persistence")
    assert (found.level, "delays deliveries by one sweep at most" in found.what) == (NOTE, True)


@once
@pytest.mark.parametrize("save", ["", "3600 1"])
def test_without_persistence_a_stream_is_lost_which_is_a_warning_and_the_advice_fixes_it(
    with_stream: Outbox, client: Any, save: str
) -> None:
    client.config_set("save", save)
    found = finding_of(with_stream, "persistence")
    assert (found.level, "delivered to events are lost" in found.what) == (WARNING, True)
    execute(client, commands_in(found)[0])
    assert finding_of(with_stream, "persistence").level == OK


@once
def test_a_stream_that_only_a_worker_reports_counts_too(with_stream: Outbox) -> None:
    with_stream.reporter.report_now()
    current_outbox.registry.clear()
    assert finding_of(with_stream, "persistence").level == WARNING


@once
def test_a_redis_that_can_t_write_to_its_disk_is_a_problem(box: Outbox, server: RedisServer, client: Any) -> None:
    target = server.folder / "dump.rdb"
    target.unlink(missing_ok=True)
    target.mkdir()  # what can't be written over
    try:
        with pytest.raises(redis.ResponseError):
            client.save()
        client.config_set("save", "1 1")
        client.set("something", 1)
        client.bgsave()
        becomes_true(lambda: finding_of(box, "persistence").level == PROBLEM)
    finally:
        target.rmdir()
        client.config_set("save", "")
        client.save()
        client.bgsave()
    becomes_true(lambda: finding_of(box, "persistence").level == NOTE)


@once
@pytest.mark.parametrize(("share", "level"), [(0.5, OK), (0.94, WARNING), (2.0, PROBLEM)])
def test_nearly_used_memory_is_reported(box: Outbox, client: Any, share: float, level: str) -> None:
    client.config_set("maxmemory", int(client.info("memory")["used_memory"] / share))
    assert finding_of(box, "memory").level == level


@once
def test_a_provider_that_forbids_config_is_a_note(configure: Configure, server: RedisServer, client: Any) -> None:
    execute(client, "ACL SETUSER limited on >limited-word ~* &* +@all -config")
    box = configure(redis_url=server.url.replace("redis://", "redis://limited:limited-word@"))
    found = finding_of(box, "persistence")
    assert (found.level, "it refuses CONFIG" in found.what) == (NOTE, True)
    assert [finding_of(box, each).level for each in ("redis", "eviction", "memory")] == [OK] * 3
    execute(client, "ACL DELUSER limited")


@once
def test_a_redis_that_stops_between_two_checks_is_a_finding_of_each(configure: Configure) -> None:
    with RedisServer() as going:
        box = configure(redis_url=going.url)
        assert finding_of(box, "redis").level == OK
    assert [finding_of(box, each).level for each in ALL] == [PROBLEM] * 4


def test_without_redis_a_fleet_on_postgres_is_warned_and_an_embedded_outbox_is_not(configure: Configure) -> None:
    box = configure(dispatch="dramatiq")
    expected = WARNING if box.dialect.name == "postgres" else OK
    assert finding_of(box, "redis").level == expected
    assert finding_of(configure(dispatch="off"), "redis").level == OK
