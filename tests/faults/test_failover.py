"""PostgreSQL moves to a standby: what that had been sent is there, in one piece, and everybody follows."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest

from outbox.core import Outbox
from tests.support.processes import Emitter, MakeStage, Stage, close_all
from tests.support.servers import PASSWORD, USER, PostgresServer, wait_until


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

    def cut_off(self) -> None:
        """It hears of nothing any more; what it has heard of is in its tables when this returns."""
        self._execute_all("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        assert wait_until(lambda: self.ask("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)])
        assert wait_until(lambda: self.ask("SELECT pg_last_wal_replay_lsn() = pg_last_wal_receive_lsn()") == [(True,)])

    def promote(self) -> None:
        assert self.ask("SELECT pg_promote()") == [(True,)]

    def ask(self, query: Any, database_url: str | None = None) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url if database_url is None else database_url, autocommit=True) as connection:
            return connection.execute(query).fetchall()

    def _execute_all(self, *statements: Any) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)


class Pair:
    """A primary, its standby, and a database that is reached wherever it is."""

    def __init__(self, primary: PostgresServer, standby: Standby, database_url: str) -> None:
        self.primary, self.standby = primary, standby
        url = urlsplit(database_url)
        both = f"{USER}:{url.password}@127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        self.url = url._replace(netloc=both).geturl()
        self._copy = url._replace(netloc=f"{USER}:{url.password}@127.0.0.1:{standby.port}").geturl()

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()

    def copied(self, query: str) -> list[tuple[Any, ...]]:
        """What the standby's copy says."""
        return self.standby.ask(query, self._copy)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with PostgresServer() as primary:
        url = primary.create_database("moved")
        with Standby(primary) as standby:
            yield Pair(primary, standby, url)


def assert_duplicates_have_the_same_bytes(stage: Stage) -> None:
    assert len({(entry.id, entry.body) for entry in stage.entries("began")}) == len(set(stage.began()))


def test_to_a_synchronous_standby_loses_nothing_and_everybody_follows(make_stage: MakeStage, pair: Pair) -> None:
    with psycopg.connect(pair.primary.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
    stage = make_stage(database_url=pair.url, lease_seconds=3)
    worker = stage.worker()
    stage.scheduler()
    emitter = Emitter(stage)
    stage.wait_for(lambda: len(stage.ended()) > 20, "events are delivered")
    before = len(emitter.committed())
    pair.fail_over()
    stage.reconnect()
    emitter.wait_for_more(20)
    assert emitter.stop() == 0
    stage.wait_until_all("delivered")
    assert before > 0
    assert set(emitter.committed()) <= set(stage.ended())
    assert {id for (id,) in stage.rows("id")} == set(stage.ended())
    assert_duplicates_have_the_same_bytes(stage)
    assert worker.running
    close_all(stage.box)


class TestToAStandbyThatLagsBehind:
    """What it had not been sent is lost, and nothing else; of each transaction all or nothing."""

    @pytest.fixture
    def stage(self, make_stage: MakeStage, pair: Pair) -> Iterator[Stage]:
        stage = make_stage(database_url=pair.url, lease_seconds=3)
        with stage.box.dialect.connection():
            stage.box.dialect.run("CREATE TABLE own (name text)")
        yield stage
        close_all(stage.box)

    def test_an_event_is_lost_if_and_only_if_the_change_is(self, stage: Stage, pair: Pair) -> None:
        gate = stage.gate()
        worker = stage.worker(threads=2)
        stage.scheduler()
        settled = self.change(stage, 10, "settled")
        stage.wait_until_all("delivered")
        (unsettled,) = self.change(stage, 1, "unsettled", do="wait", gate=str(gate))
        stage.wait_until_begun(unsettled)
        being_sent = "SELECT count(*) FROM outbox_event WHERE status = 'sending'"
        stage.wait_for(lambda: pair.copied(being_sent) == [(1,)], "the standby has it all")

        pair.standby.cut_off()
        before = dict(pair.copied("SELECT id, status FROM outbox_event"))
        assert before == dict.fromkeys(settled, "delivered") | {unsettled: "sending"}
        gate.touch()
        stage.wait_until_all("delivered")  # says the primary, and takes that with it
        sent_and_lost = self.change(stage, 5, "sent and lost")
        stage.wait_until_all("delivered")
        last_gate = stage.gate()
        (begun_and_lost,) = self.change(stage, 1, "begun and lost", do="wait", gate=str(last_gate))
        stage.wait_until_begun(begun_and_lost)
        lost = {*sent_and_lost, begun_and_lost}
        assert {id for (id,) in stage.rows("id")} == {*before, *lost}

        pair.fail_over()
        stage.reconnect()
        assert {id for (id,) in stage.rows("id")} == set(before)
        assert self.changes(stage.box) == {name for (name,) in stage.rows("aggregate_id")}
        last_gate.touch()  # its worker is through with an event that never was
        again = self.change(stage, 5, "sent and lost")  # the same keys: what was lost can be done anew
        stage.wait_until_all("delivered")
        assert {id for (id,) in stage.rows("id")} == {*before, *again}
        assert self.changes(stage.box) == {name for (name,) in stage.rows("aggregate_id")}

        stage.wait_for(lambda: begun_and_lost in stage.ended(), "the handler of what was lost ends")
        assert Counter(stage.ended()) == dict.fromkeys([*settled, *again, *lost], 1) | {unsettled: 2}
        assert_duplicates_have_the_same_bytes(stage)
        assert worker.running

    @staticmethod
    def change(stage: Stage, number: int, what: str, **payload: Any) -> list[UUID]:
        """The application's own rows, each with its event in one transaction."""
        box, ids = stage.box, []
        for name in (f"{what} {n}" for n in range(number)):
            with box.dialect.connection(), box.database.atomic():
                box.dialect.run("INSERT INTO own VALUES (%s)", (name,))
                ids.append(box.emit("Thing", name, "test.emitted", {"do": "pass"} | payload).id)
        return ids

    @staticmethod
    def changes(box: Outbox) -> set[str]:
        with box.dialect.connection():
            return {name for (name,) in box.dialect.run("SELECT name FROM own").fetchall()}
