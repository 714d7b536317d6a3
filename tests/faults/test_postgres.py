"""What PostgreSQL can do to its clients: hang up during COMMIT, end their connections, keep them waiting, move away."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

import peewee
import psycopg
import pytest

import outbox
from outbox.connect import open_database
from outbox.core import Outbox
from outbox.settings import Settings
from tests.chaos.proxy import AFTER, BEFORE, Proxy
from tests.processes import Emitter, MakeStage, Stage, close_all
from tests.servers import PASSWORD, USER, PostgresServer

STORM = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
WAITING = "SELECT count(*) FROM pg_locks WHERE relation = 'outbox_event'::regclass AND NOT granted"


def assert_duplicates_have_the_same_bytes(stage: Stage) -> None:
    assert len({(entry.id, entry.body) for entry in stage.entries("began")}) == len(set(stage.began()))


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
        stage.wait_for(lambda: len(stage.ended()) > 50, "events are delivered")
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
        assert emitter.stop() == 0
        assert "Error" not in emitter.program.said()
        stage.wait_until_all("delivered")
        assert {in_flight, *emitter.committed()} == set(stage.ended())
        assert_duplicates_have_the_same_bytes(stage)
        assert worker.running


class Standby(PostgresServer):
    """A copy of another server that follows it."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(primary.programs)
        self._primary = primary

    def _initialise(self) -> None:
        if self._user:
            os.chown(self.folder, self._user["user"], self._user["group"])
        address = ["--host=127.0.0.1", f"--port={self._primary.port}", f"--username={USER}"]
        subprocess.run(
            [
                self.programs / "pg_basebackup",
                *address,
                f"--pgdata={self.data}",
                "--write-recovery-conf",
                "--checkpoint=fast",
            ],
            env={"PGPASSWORD": PASSWORD, "PATH": os.defpath},
            cwd=self.folder,
            check=True,
            capture_output=True,
            **self._user,
        )

    def promote(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)


class TestAFailover:
    def test_to_a_synchronous_standby_loses_nothing_and_everybody_follows(self, make_stage: MakeStage) -> None:
        """To one that lags behind, what it had not yet been sent is lost, with the application's own changes."""
        with PostgresServer() as primary:
            url = urlsplit(primary.create_database("moved"))
            with Standby(primary) as standby:
                with psycopg.connect(primary.url, autocommit=True) as connection:
                    connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                    connection.execute("SELECT pg_reload_conf()")
                both = f"{USER}:{url.password}@127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
                stage = make_stage(database_url=url._replace(netloc=both).geturl(), lease_seconds=3)
                worker = stage.worker()
                stage.scheduler()
                emitter = Emitter(stage)
                stage.wait_for(lambda: len(stage.ended()) > 50, "events are delivered")
                primary.kill()
                before = len(emitter.committed())
                standby.promote()
                stage.reconnect()
                emitter.wait_for_more(50)
                assert emitter.stop() == 0
                stage.wait_until_all("delivered")
                assert before > 0
                assert set(emitter.committed()) <= set(stage.ended())
                assert {id for (id,) in stage.rows("id")} == set(stage.ended())
                assert_duplicates_have_the_same_bytes(stage)
                assert worker.running
                close_all(stage.box)
