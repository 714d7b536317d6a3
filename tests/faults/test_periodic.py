"""Periodic jobs with real schedulers: each scheduled time is stored once, whatever is started, killed or deleted."""

import signal
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

import psycopg
import pytest

from outbox.storage.models import OutboxEvent
from tests.support.processes import BIN, MakeStage, Program, Stage
from tests.support.servers import send
from tests.support.table import end_connections

MODULE = "tests.apps.periodic"
SECOND = timedelta(seconds=1)

# Clean-up deletes the rows, so a trigger keeps the keys of all runs that were ever committed.
REMEMBER = """
CREATE TABLE stored_run (name text, key text);
CREATE FUNCTION remember() RETURNS trigger AS $$ BEGIN
    INSERT INTO stored_run VALUES (NEW.event_type, NEW.idempotency_key); RETURN NULL;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER remember AFTER INSERT ON outbox_event FOR EACH ROW EXECUTE FUNCTION remember();
"""


@pytest.fixture
def stage(make_stage: MakeStage, postgres_url: str) -> Stage:
    stage = make_stage(lease_seconds=2)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(REMEMBER)
    return stage


def start_scheduler(stage: Stage) -> Program:
    return stage.start("scheduler", sys.executable, "-m", "scheduler", MODULE, ready="scheduler started")


def stored(url: str, name: str) -> list[datetime]:
    """The scheduled times of all runs of a job that were ever stored, in order; twice if stored twice."""
    with psycopg.connect(url) as connection:
        keys = connection.execute("SELECT key FROM stored_run WHERE name = %s", (name,)).fetchall()
    return sorted(datetime.fromisoformat(key.partition("scheduled ")[2]) for (key,) in keys)


def assert_each_once(times: Sequence[datetime], every: timedelta = SECOND) -> None:
    assert Counter(times).most_common(1)[0][1] == 1
    assert list(times) == [times[0] + number * every for number in range(len(times))]


def wait_for_runs(stage: Stage, url: str, number: int) -> None:
    """Wait for so many more runs of the job that comes every second."""
    before = len(stored(url, "every-second"))
    stage.wait_for(lambda: len(stored(url, "every-second")) >= before + number, f"{number} more runs")


def clean_up(stage: Stage) -> None:
    """Delete all runs that have ended."""
    stage.wait_for(lambda: stage.box.cleanup_delivered_events(0)["deleted"] > 0, "something is deleted")


def test_two_schedulers_killed_restarted_and_cleaned_up_after_store_each_time_once(
    stage: Stage, postgres_url: str
) -> None:
    stage.worker(MODULE)
    first = start_scheduler(stage)
    wait_for_runs(stage, postgres_url, 2)
    second = start_scheduler(stage)
    wait_for_runs(stage, postgres_url, 3)
    clean_up(stage)
    first.kill()
    wait_for_runs(stage, postgres_url, 2)
    first = start_scheduler(stage)
    clean_up(stage)
    second.kill()
    first.kill()  # now there is none
    second = start_scheduler(stage)
    wait_for_runs(stage, postgres_url, 3)
    third = start_scheduler(stage)
    clean_up(stage)
    wait_for_runs(stage, postgres_url, 3)
    for scheduler in (second, third):
        scheduler.signal(signal.SIGTERM)
        assert scheduler.wait() == 0
        assert "Traceback" not in scheduler.said()
    for name in ("every-second", "enqueued"):
        assert_each_once(stored(postgres_url, name))
    latest = stored(postgres_url, "latest")
    assert len(latest) == len(set(latest))
    minutes = stored(postgres_url, "every-minute")
    assert len(minutes) == len(set(minutes))
    stage.wait_until_all("delivered")
    ran = [datetime.fromisoformat(entry.body) for entry in stage.entries("ran")]
    assert sorted(ran) == stored(postgres_url, "every-second")
    stage.wait_for(
        lambda: len(stage.entries("enqueued")) == len(stored(postgres_url, "enqueued")), "every message is processed"
    )


def test_one_that_stood_still_does_not_store_again_what_the_other_has_stored(stage: Stage, postgres_url: str) -> None:
    paused, _ = start_scheduler(stage), start_scheduler(stage)
    wait_for_runs(stage, postgres_url, 2)
    send(signal.SIGSTOP, paused.family())
    wait_for_runs(stage, postgres_url, 4)
    with stage.box.dialect.connection():
        OutboxEvent.delete().execute(stage.box.database)
    send(signal.SIGCONT, paused.family())
    wait_for_runs(stage, postgres_url, 3)
    assert_each_once(stored(postgres_url, "every-second"))


def test_a_database_that_ends_all_connections_costs_nothing_but_time(stage: Stage, postgres_url: str) -> None:
    scheduler = start_scheduler(stage)
    for _ in range(3):
        wait_for_runs(stage, postgres_url, 2)
        end_connections(postgres_url)
    wait_for_runs(stage, postgres_url, 2)
    assert_each_once(stored(postgres_url, "every-second"))
    assert "Traceback" not in scheduler.said()


def test_outbox_up_runs_periodic_jobs_on_sqlite(make_stage: MakeStage, sqlite_url: str) -> None:
    stage = make_stage(database_url=sqlite_url, redis_url=None, sweep_seconds=3600)
    up = stage.up(MODULE)
    stage.wait_for(lambda: len(stage.entries("ran")) >= 3, "functions run")
    stage.wait_for(lambda: len(stage.entries("enqueued")) >= 3, "actors run")
    up.signal(signal.SIGTERM)
    assert up.wait() == 0
    assert_each_once(sorted(datetime.fromisoformat(entry.body) for entry in stage.entries("ran")))
    assert "Traceback" not in up.said()


def test_a_scheduler_with_periodic_jobs_and_without_a_database_says_so_in_one_line(stage: Stage) -> None:
    del stage.environment["OUTBOX_DATABASE_URL"]
    scheduler = stage.start("scheduler", BIN / "outbox", "scheduler", MODULE)
    assert scheduler.wait() == 2
    assert scheduler.said().startswith("outbox: This scheduler has periodic jobs, which need the outbox's database")
    assert scheduler.said().count("\n") == 1


def test_a_scheduler_whose_tables_are_missing_says_so_in_one_line(make_stage: MakeStage) -> None:
    stage = make_stage(create_tables=False)
    scheduler = stage.start("scheduler", BIN / "outbox", "scheduler", MODULE)
    assert scheduler.wait() == 2
    assert "run `outbox init`" in scheduler.said()
    assert "Traceback" not in scheduler.said()


def test_while_the_database_is_down_sweeps_go_on(stage: Stage) -> None:
    stage.environment["OUTBOX_DATABASE_URL"] = "postgresql://127.0.0.1:1/nothing"
    scheduler = start_scheduler(stage)
    queue = f"{stage.settings.namespace}:{stage.settings.queue}"
    stage.wait_for(lambda: stage.broker.client.llen(queue) >= 2, "it sweeps")
    stage.wait_for(lambda: "Could not store the runs of periodic jobs" in scheduler.said(), "it says so")
    assert scheduler.running
    assert "Traceback" not in scheduler.said()
