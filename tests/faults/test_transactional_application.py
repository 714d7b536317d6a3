"""An existing Dramatiq application, made transactional by one line: its own worker, and an outbox worker beside it."""

from collections import Counter
from pathlib import Path
from sys import executable

import pytest

from tests.support.processes import BIN, MakeStage, Stage
from tests.support.servers import Redis

TASKS, BROKER = "tests.apps.shop.tasks", "tests.apps.shop.broker"


@pytest.fixture
def shop(make_stage: MakeStage, redis_server: Redis) -> Stage:
    """Its broker is its own: the outbox's settings name none."""
    stage = make_stage(redis_url=None)
    stage.environment |= {
        "OUTBOX_TEST_BROKER_URL": redis_server.url,
        "OUTBOX_TEST_BROKER_NAMESPACE": stage.settings.namespace,
    }
    with stage.box.dialect.connection():
        stage.box.dialect.run("CREATE TABLE record (id serial PRIMARY KEY, what text)")
    return stage


def records(shop: Stage) -> Counter[str]:
    with shop.box.dialect.connection():
        return Counter(what for (what,) in shop.box.dialect.run("SELECT what FROM record").fetchall())


def start(shop: Stage, name: str, *command: str | Path) -> None:
    shop.start(name, *command, "-p", "1", "-t", "3", ready="ready for action")


EXPECTED = Counter(
    [
        *(f"priced {order}" for order in (1, 2, 3, 4)),
        "taxed 200",
        "celebrated the group",
        "celebrated at once",
        "flaky 5 in attempt 3",
        "celebrated flaky 5 in attempt 3",
    ]
)


@pytest.mark.parametrize(
    "outbox_worker",
    [
        pytest.param((TASKS, "-Q", "outbox"), id="with its tasks, which its own worker runs"),
        pytest.param((BROKER, "-Q", "outbox"), id="with its broker alone"),
        pytest.param((TASKS,), id="with its tasks, in the place of its own worker"),
    ],
)
def test_nothing_else_changes(shop: Stage, outbox_worker: tuple[str, ...]) -> None:
    if "-Q" in outbox_worker:
        start(shop, "own-worker", BIN / "dramatiq", TASKS)
    start(shop, "outbox-worker", BIN / "outbox", "worker", *outbox_worker)
    shop.start("scheduler", BIN / "outbox", "scheduler", BROKER, ready="scheduler started")
    web = shop.start("web", executable, "-m", "tests.apps.shop.web")
    assert web.wait() == 0, web.said()
    assert "results 100 400 300 400" in web.said()
    shop.wait_for(lambda: len(records(shop)) >= len(EXPECTED), "all that was sent has run")
    shop.wait_until_all("delivered")
    assert records(shop) == EXPECTED
    said = "".join(program.said() for program in shop.programs)
    assert "Unexpected failure" not in said
    assert "TransactionOpen" not in said
