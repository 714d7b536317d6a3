"""`outbox consume events your.module`, as real processes."""

import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import pytest

from outbox.cli.consume import consume as command
from tests.consumer.streams import Stream, fields
from tests.support.processes import BIN, ROOT, MakeStage, Program, Stage
from tests.support.program import run
from tests.support.servers import PostgresServer, Redis

MODULE = "tests.apps.ledger"


class Consumers:
    """Processes that consume one stream. Their handlers write to the stage's ledger."""

    def __init__(self, stage: Stage, stream: Stream) -> None:
        self.stage, self.stream = stage, stream

    def start(self, *options: object) -> Program:
        command = ("consume", self.stream.key, MODULE, *map(str, options))
        return self.stage.start("consumer", BIN / "outbox", *command, ready="consuming")

    def add(self, count: int = 1, **payload: Any) -> list[UUID]:
        """Add entries in one step: a consumer that waits gets them together."""
        entries = [fields({"do": "pass"} | payload, type="test.emitted") for _ in range(count)]
        with self.stream.client.pipeline(transaction=True) as pipeline:
            for entry in entries:
                pipeline.xadd(self.stream.key, entry)
            pipeline.execute()
        return [UUID(entry["id"]) for entry in entries]

    def wait_until_done(self) -> None:
        self.stage.wait_for(lambda: self.stream.left() == 0, "every entry is acknowledged")

    def processed(self) -> int:
        with self.stage.box.dialect.connection():
            return int(self.stage.box.dialect.run("SELECT count(*) FROM inbox").fetchone()[0])


@pytest.fixture
def consumers(stage: Stage, stream: Stream) -> Consumers:
    return Consumers(stage, stream)


class TestSignals:
    @pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
    def test_entries_that_were_read_are_processed_and_no_others_are_begun(
        self, consumers: Consumers, signum: signal.Signals
    ) -> None:
        stage, stream = consumers.stage, consumers.stream
        gate = stage.gate()
        fetched = consumers.add(do="wait", gate=str(gate)) + consumers.add(2)
        consumers.add()
        process = consumers.start("--batch", 3)
        stage.wait_until_begun(fetched[0])
        process.signal(signum)
        gate.touch()
        assert process.wait() == 0
        assert stage.ended() == fetched
        assert (stream.pending(), stream.left(), stream.consumers()) == ([], 1, [])
        assert "1 behind, 0 pending, 3 processed, 0 skipped, 0 parked" in process.said()
        assert process.said().endswith("stopped\n")

    def test_an_idle_consumer_stops(self, consumers: Consumers) -> None:
        process = consumers.start()
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert consumers.stream.consumers() == []

    def test_a_consumer_with_pending_entries_stays_in_the_group(self, consumers: Consumers) -> None:
        consumers.add(do="fail", times=1)
        process = consumers.start("--idle-seconds", 3600, "--name", "me")
        consumers.stage.wait_for(lambda: "will be delivered again" in process.said(), "the handler has failed")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert (consumers.stream.consumers(), consumers.stream.pending()) == ([b"me"], [1])


def test_several_processes_share_the_entries(consumers: Consumers) -> None:
    for _ in range(2):
        consumers.start("--batch", 5, "--idle-seconds", 3600)
    ids = consumers.add(200, do="work", seconds=0.002)
    consumers.wait_until_done()
    assert Counter(consumers.stage.began()) == Counter(consumers.stage.ended()) == Counter(ids)
    assert len({entry.pid for entry in consumers.stage.entries("ended")}) == 2


def test_the_entries_of_a_killed_process_are_taken_over_by_another(consumers: Consumers) -> None:
    stage = consumers.stage
    gate = stage.gate()
    ids = consumers.add(3) + consumers.add(do="wait", gate=str(gate)) + consumers.add(3)
    killed = consumers.start("--idle-seconds", 0.5)
    stage.wait_until_begun(ids[3])
    killed.kill()
    gate.touch()
    assert consumers.stream.pending() == [1] * 7
    another = consumers.start("--idle-seconds", 0.5)
    consumers.wait_until_done()
    assert Counter(stage.ended()) == Counter(ids)
    assert Counter(stage.began()) == Counter([*ids, ids[3]])
    another.signal(signal.SIGTERM)
    another.wait()
    assert "7 processed, 3 skipped, 0 parked" in another.said()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class TestPostgres:
    @pytest.fixture
    def consumers(self, make_stage: MakeStage, own_postgres: PostgresServer, stream: Stream) -> Consumers:
        return Consumers(make_stage(database_url=own_postgres.create_database("restarted")), stream)

    def test_restarted_inside_a_transaction_costs_no_delivery(
        self, consumers: Consumers, own_postgres: PostgresServer
    ) -> None:
        stage = consumers.stage
        gate = stage.gate()
        (id,) = consumers.add(do="wait", gate=str(gate))
        process = consumers.start("--idle-seconds", 0.5, "--max-deliveries", 1)
        stage.wait_until_begun(id)
        own_postgres.restart()
        stage.reconnect()
        gate.touch()
        consumers.wait_until_done()
        assert [(entry.id, entry.attempt) for entry in stage.entries("began")] == [(id, 1), (id, 1)]
        assert (consumers.processed(), consumers.stream.parked()) == (1, [])
        assert "the database is unavailable; waiting until it responds" in process.said()
        assert "the database is available again" in process.said()
        assert "Traceback" not in process.said()

    def test_unavailable_for_longer_than_idle_seconds_costs_no_delivery(
        self, consumers: Consumers, own_postgres: PostgresServer
    ) -> None:
        stage, options = consumers.stage, ("--idle-seconds", 0.3, "--max-deliveries", 1)
        gate = stage.gate()
        (id,) = consumers.add(do="wait", gate=str(gate))
        silent = consumers.start(*options)
        stage.wait_until_begun(id)
        own_postgres.stop()
        gate.touch()
        stage.wait_for(lambda: "waiting until it responds" in silent.said(), "the database is lost")
        silent.signal(signal.SIGSTOP)
        own_postgres.start()
        consumers.start(*options)
        consumers.wait_until_done()
        assert [(entry.id, entry.attempt) for entry in stage.entries("began")] == [(id, 1), (id, 1)]
        assert consumers.stream.parked() == []

    def test_available_again_lets_the_rest_of_a_batch_be_processed(
        self, consumers: Consumers, own_postgres: PostgresServer
    ) -> None:
        stage = consumers.stage
        gate = stage.gate()
        ids = consumers.add(do="wait", gate=str(gate)) + consumers.add(2)
        process = consumers.start("--idle-seconds", 3600)
        stage.wait_until_begun(ids[0])
        own_postgres.restart()
        gate.touch()
        stage.wait_for(lambda: consumers.stream.left() == 1, "the others are acknowledged")
        assert [(entry.id, entry.attempt) for entry in stage.entries("began")] == [(id, 1) for id in ids]
        assert consumers.stream.pending() == [0]
        assert process.running

    @pytest.mark.parametrize("immediate", [False, True], ids=["fast", "immediate"])
    def test_restarted_under_load_loses_nothing(
        self, consumers: Consumers, own_postgres: PostgresServer, *, immediate: bool
    ) -> None:
        ids = consumers.add(500, do="work", seconds=0.002)
        processes = [consumers.start("--idle-seconds", 1) for _ in range(2)]
        consumers.stage.wait_for(lambda: len(consumers.stage.ended()) > 50, "they are at work")
        own_postgres.restart(immediate=immediate)
        consumers.stage.reconnect()
        consumers.wait_until_done()
        assert consumers.processed() == len(ids)
        assert set(consumers.stage.ended()) == set(ids)
        assert consumers.stream.parked() == []
        assert all(process.running for process in processes)

    def test_unavailable_does_not_delay_a_stop_and_entries_not_begun_cost_no_delivery(
        self, consumers: Consumers, own_postgres: PostgresServer
    ) -> None:
        process = consumers.start("--name", "me")
        own_postgres.stop()
        consumers.add(3)
        consumers.stage.wait_for(lambda: "waiting until it responds" in process.said(), "the database is lost")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert consumers.stream.pending() == [0, 0, 0]
        assert consumers.stage.began() == []


APPLICATION = """
import outbox

outbox.add_destination(outbox.Webhook("hook", "https://example.org/"))
outbox.add_destination(outbox.RedisStream("bus", url="redis://127.0.0.1:1/0", stream="events.{aggregate_type}"))
outbox.handler("*", name="all")(print)
"""


class TestMistakes:
    """Each is reported in one line that says what to do."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "shop.py").write_text(APPLICATION)
        (tmp_path / "empty.py").write_text("")
        return tmp_path

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["events"], "Missing argument 'MODULE...'"),
            (["events", "nowhere"], "outbox: There is no module 'nowhere' in"),
            (["events", "shop.py"], "outbox: 'shop.py' is a path. Name the module as Python would import it: shop"),
            (["events", "empty"], "outbox: no handler is registered, so every entry would be acknowledged"),
            (["hook", "shop"], "outbox: 'hook' is a Webhook, not a RedisStream"),
            (["bus", "shop"], "outbox: 'bus' writes to several streams, 'events.{aggregate_type}'"),
            (["", "shop"], "outbox: The name of a stream must be text that is not empty"),
            (["events", "shop", "--url", "nonsense"], "outbox: The stream's url can't be read as redis://"),
            (["events", "shop", "--url", "redis://127.0.0.1:1/0"], "outbox: The Redis of the stream 'events' can't be"),
            (["events", "shop", "--group", ""], "outbox: group must be text that is not empty"),
            (["events", "shop", "--name", ""], "outbox: name must be text that is not empty"),
            (["events", "shop", "--dead-letter", "events"], "outbox: The dead-letter stream of 'events' must be anoth"),
            (["events", "shop", "--batch", "0"], "Invalid value for '--batch'"),
            (["events", "shop", "--max-deliveries", "0"], "Invalid value for '--max-deliveries'"),
            (["events", "shop", "--idle-seconds", "0"], "Invalid value for '--idle-seconds'"),
            (["events", "shop", "--idle-seconds", "nan"], "outbox: idle_seconds must be a number of seconds"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_are_reported(
        self, folder: Path, sqlite_file_with_tables: Path, redis_server: Redis, arguments: list[str], line: str
    ) -> None:
        settings = {"database_url": f"sqlite:///{sqlite_file_with_tables}", "redis_url": redis_server.url}
        done = run(BIN / "outbox", "consume", *arguments, cwd=folder, **settings)
        assert done.returncode == 2
        assert line in done.stdout
        assert "Traceback" not in done.stdout

    @pytest.mark.parametrize(
        ("settings", "line"),
        [
            (
                {},
                "outbox: No RedisStream is called 'events', and neither OUTBOX_CONSUME_URL nor",
            ),
            ({"redis_url": "redis://127.0.0.1:1/0"}, "outbox: There is no database sqlite:///"),
        ],
        ids=["no Redis", "no database"],
    )
    def test_in_the_settings_are_reported(self, folder: Path, settings: dict[str, str], line: str) -> None:
        database_url = f"sqlite:///{folder / 'new.db'}"
        done = run(BIN / "outbox", "consume", "events", "shop", cwd=folder, database_url=database_url, **settings)
        assert done.returncode == 2
        assert line in done.stdout
        assert "Traceback" not in done.stdout


def options() -> set[str]:
    return {each.opts[0] for each in command.params if isinstance(each, click.Option)}


class TestHelp:
    def test_names_every_option(self) -> None:
        done = run(BIN / "outbox", "consume", "--help")
        assert done.returncode == 0
        assert "STREAM MODULE..." in done.stdout
        assert options() <= set(re.findall(r"^  (--[a-z-]+)", done.stdout, re.MULTILINE))

    def test_and_the_documentation_name_every_option(self) -> None:
        documented = set(
            re.findall(r"^\| `(--[a-z-]+)` \|", (ROOT / "docs/how-to/consuming.md").read_text(), re.MULTILINE)
        )
        assert documented == options()
