"""The tables go from one version to the next while old and new workers are at work on them."""

from collections import Counter

import pytest

from outbox.core import Outbox
from outbox.errors import SchemaError
from outbox.settings import Settings
from outbox.storage import schema
from outbox.storage.connect import open_database
from tests.support.processes import BIN, Emitter, MakeStage, close_all

PREVIOUS = "tests.apps.previous"


@pytest.fixture
def previous_tables(postgres_url: str) -> str:
    """A database as the version before order per key has made it."""
    box = Outbox(Settings(dispatch="off"), database=open_database(postgres_url))
    schema.upgrade(box.dialect, versions=schema.VERSIONS[:5])
    with pytest.raises(SchemaError, match="outbox init"):
        box.check_schema()
    close_all(box)
    return postgres_url


def test_under_load_nothing_is_lost_or_doubled_and_old_workers_go_on(
    make_stage: MakeStage, previous_tables: str
) -> None:
    stage = make_stage(database_url=previous_tables, create_tables=False, publish_seconds=0.2)
    old = stage.worker(PREVIOUS)
    emitter = Emitter(stage)
    stage.wait_for(lambda: len(stage.ended()) > 20, "the old worker delivers")

    # The new code says what it needs, and goes no further. Then the tables, then the new code; the old one stays.
    refused = stage.start("new", BIN / "dramatiq", "jobs", "tests.apps.ledger", "-p", "1", "-t", "1")
    stage.wait_for(lambda: "run `outbox init`" in refused.said(), "a new worker says what it needs")
    refused.kill()
    upgraded = stage.start("init", BIN / "outbox", "init")
    assert upgraded.wait() == 0
    stage.scheduler()
    emitter.wait_for_more(20)
    before = {entry.pid for entry in stage.entries("ended")}
    stage.worker()
    stage.wait_for(lambda: {entry.pid for entry in stage.entries("ended")} > before, "the new worker delivers, too")

    since = len(stage.ended())
    stage.wait_for(lambda: before & {entry.pid for entry in stage.entries("ended")[since:]} != set(), "the old goes on")
    emitter.wait_for_more(20)
    assert emitter.stop() == 0
    assert old.running
    stage.wait_until_all("delivered")
    assert Counter(stage.ended()) == Counter(emitter.committed())
