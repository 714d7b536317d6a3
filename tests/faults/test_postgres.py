"""What PostgreSQL can do to its clients: hang up during COMMIT, end their connections, keep them waiting."""

import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit
from uuid import UUID

import peewee
import psycopg
import pytest

import outbox
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database
from tests.chaos.proxy import AFTER, BEFORE, Proxy
from tests.support.processes import Emitter, MakeStage, Stage, close_all
from tests.support.servers import PostgresServer

STORM = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
WAITING = "SELECT count(*) FROM pg_locks WHERE relation = 'outbox_event'::regclass AND NOT granted"


def assert_duplicates_have_the_same_bytes(stage: Stage) -> None:
    assert len({(entry.id, entry.body) for entry in stage.entries("began")}) == len(set(stage.began()))


def assert_all_came(stage: Stage, emitter: Emitter, in_flight: UUID) -> None:
    """The emitter has waited, at most, and whatever was committed was delivered; what was in flight perhaps again."""
    assert emitter.stop() == 0
    assert "Error" not in emitter.program.said()
    stage.wait_until_all("delivered")
    assert {in_flight, *emitter.committed()} == set(stage.ended())
    assert_duplicates_have_the_same_bytes(stage)


class TestAConnectionCutDuringCommit:
    @pytest.fixture
    def proxy(self, postgres_url: str) -> Iterator[Proxy]:
        with Proxy(urlsplit(postgres_url).port or 5432) as proxy:
            yield proxy

    @pytest.fixture
    def remote(self, stage: Stage, proxy: Proxy) -> Iterator[Outbox]:
        """An application beyond the proxy, with a table of its own."""
        url = urlsplit(stage.settings.database_url)
        netloc = f"{url.username}:{url.password}@127.0.0.1:{proxy.port}"
        box = Outbox(Settings(dispatch="off"), database=open_database(url._replace(netloc=netloc).geturl()))
        with box.dialect.connection():
            box.dialect.run("CREATE TABLE own (name text)")
        yield box
        close_all(box)

    @pytest.mark.parametrize(("how", "happened"), [(BEFORE, 0), (AFTER, 3)])
    def test_leaves_each_event_if_and_only_if_the_change_is_there(
        self, stage: Stage, proxy: Proxy, remote: Outbox, how: str, happened: int
    ) -> None:
        proxy.cut(how, times=3)
        for number in range(3):
            with pytest.raises((peewee.OperationalError, peewee.InterfaceError)):
                self.change_and_emit(remote, f"cut {number}")
        self.change_and_emit(remote, "whole")  # and the next one is none the worse for it
        assert proxy.cuts == 3

        stage.worker()
        stage.scheduler()
        stage.wait_until_all("delivered")
        with remote.dialect.connection():
            changes = {name for (name,) in remote.dialect.run("SELECT name FROM own").fetchall()}
        events = {name for (name,) in stage.rows("aggregate_id")}
        assert changes == events
        assert len(events) == happened + 1
        assert Counter(stage.ended()) == {id: 1 for (id,) in stage.rows("id")}

    @staticmethod
    def change_and_emit(box: Outbox, name: str) -> None:
        with box.dialect.connection(), box.database.atomic():
            box.dialect.run("INSERT INTO own VALUES (%s)", (name,))
            box.emit("Thing", name, "test.emitted", {"do": "pass"}, idempotency_key=outbox.UNIQUE)


class TestConnectionsThatAreEnded:
    def test_again_and_again_under_load_lose_nothing_and_workers_recover_by_themselves(
        self, make_stage: MakeStage
    ) -> None:
        stage = make_stage(lease_seconds=3)
        workers = [stage.worker(), stage.worker()]
        stage.scheduler()
        emitter = Emitter(stage)
        stage.wait_for(lambda: len(stage.ended()) > 20, "events are delivered")
        ended = 0
        with psycopg.connect(stage.settings.database_url, autocommit=True) as connection:
            for _ in range(8):
                ended += connection.execute(STORM).fetchone()[0]  # type: ignore[index]
                emitter.wait_for_more(20)
        assert emitter.stop() == 0
        assert ended > 8
        stage.reconnect()
        stage.wait_until_all("delivered")
        assert set(emitter.committed()) <= set(stage.ended())
        assert {id for (id,) in stage.rows("id")} == set(stage.ended())
        assert_duplicates_have_the_same_bytes(stage)
        assert all(worker.running for worker in workers)


class TestALockedTable:
    def test_for_longer_than_a_lease_loses_nothing_and_no_emitter_sees_an_error(self, make_stage: MakeStage) -> None:
        stage = make_stage(lease_seconds=1)
        gate = stage.gate()
        (in_flight,) = stage.emit(1, do="wait", gate=str(gate))
        worker = stage.worker(threads=1)
        stage.scheduler()
        stage.wait_until_begun(in_flight)
        emitter = Emitter(stage)
        emitter.wait_for_more(1)
        with (
            psycopg.connect(stage.settings.database_url) as holder,
            psycopg.connect(stage.settings.database_url, autocommit=True) as looker,
        ):
            holder.execute("LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE")
            (locked_at,) = looker.execute("SELECT clock_timestamp()").fetchone()  # type: ignore[misc]
            gate.touch()  # it is through with its event, and can't say so
            longer = "SELECT clock_timestamp() > %s::timestamptz + interval '2.5 seconds'"
            stage.wait_for(lambda: bool(looker.execute(longer, (locked_at,)).fetchone()[0]), "the lease has passed")  # type: ignore[index]
            assert looker.execute(WAITING).fetchone()[0] >= 2  # type: ignore[index]
        emitter.wait_for_more(20)
        assert_all_came(stage, emitter, in_flight)
        assert worker.running


class TestASlowDisk:
    def test_delays_commits_and_all_is_delivered_once_without_an_error(self, make_stage: MakeStage) -> None:
        # Whatever waits for the disk waits a tenth of a second before it is flushed.
        with PostgresServer(fsync="on", commit_delay="100000", commit_siblings="0") as server:
            stage = make_stage(database_url=server.create_database("slow"), lease_seconds=3)
            with psycopg.connect(server.url, autocommit=True) as connection:
                begun_at = time.monotonic()
                connection.execute("CREATE TABLE slow ()")
                assert time.monotonic() - begun_at >= 0.1
            workers = [stage.worker(), stage.worker()]
            stage.scheduler()
            emitter = Emitter(stage)
            emitter.wait_for_more(30)
            assert emitter.stop() == 0
            stage.wait_until_all("delivered")
            assert Counter(stage.ended()) == Counter(emitter.committed())
            assert {attempts for (attempts,) in stage.rows("attempts")} == {1}
            assert "Error" not in emitter.program.said()
            assert all("fenced" not in worker.said() for worker in workers)
            close_all(stage.box)

    def test_that_stalls_for_longer_than_a_lease_loses_nothing_and_no_emitter_sees_an_error(
        self, make_stage: MakeStage
    ) -> None:
        with PostgresServer() as server:
            stage = make_stage(database_url=server.create_database("stalled"), lease_seconds=1)
            gate = stage.gate()
            worker = stage.worker()
            stage.scheduler()
            (in_flight,) = stage.emit(1, do="wait", gate=str(gate))
            stage.wait_until_begun(in_flight)
            emitter = Emitter(stage)
            stage.wait_for(lambda: len(stage.ended()) > 20, "events are delivered")
            server.pause()  # whoever asks gets no answer
            stalled_at, before = time.monotonic(), len(emitter.committed())
            gate.touch()  # it is through with its event, and can't say so
            stage.wait_for(lambda: time.monotonic() > stalled_at + 2.5, "the lease has passed")
            assert len(emitter.committed()) <= before + 1
            server.resume()
            emitter.wait_for_more(20)
            assert_all_came(stage, emitter, in_flight)
            assert worker.running
            close_all(stage.box)
