"""The example of commands, as it stands: an API in a process of its own, and callers that call again."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outbox.storage.connect import open_database
from tests.support.processes import Program, Stage
from tests.support.program import run
from tests.support.serving import at_the_same_moment, port_of, post, serve


class Api:
    """The example's API that runs, and its database."""

    def __init__(self, stage: Stage, url: str) -> None:
        self.program: Program = serve(
            stage, "flask", "examples.commands.api", OUTBOX_DATABASE_URL=url, OUTBOX_DISPATCH="off"
        )
        self.port = port_of(self.program)
        self.url = url
        self.database: Any = open_database(url)

    def start(self, name: str, command_id: object) -> tuple[int, Any]:
        body = json.dumps({"command_id": command_id}).encode()
        status, answer = post(self.port, f"/workflows/{name}", body, {"Content-Type": "application/json"})
        return status, json.loads(answer)["workflow"] if status < 300 else answer.decode()

    def started(self) -> list[tuple[int, str, str]]:
        return self._all("SELECT id, command_id, name FROM workflow ORDER BY id")

    def events(self) -> list[tuple[str, str]]:
        return self._all("SELECT event_type, aggregate_id FROM outbox_event ORDER BY seq")

    def _all(self, query: str) -> list[Any]:
        with self.database.connection_context():
            return list(self.database.execute_sql(query).fetchall())


@pytest.fixture
def api(url: str, tmp_path: Path) -> Iterator[Api]:
    with Stage(tmp_path, database_url=f"sqlite:///{tmp_path / 'stage.sqlite3'}", redis_url=None) as stage:
        api = Api(stage, url)
        yield api
        api.database.close_all()
        assert "Traceback" not in api.program.said()


@pytest.mark.parametrize("times", [3, 20])
def test_a_command_that_is_sent_several_times_at_once_starts_one_workflow(api: Api, times: int) -> None:
    answers = at_the_same_moment(times, lambda: api.start("import", "c-1"), url=api.url, table="workflow")
    ((workflow, command_id, name),) = api.started()
    assert Counter(answers) == {(201, workflow): 1, (200, workflow): times - 1}
    assert (command_id, name) == ("c-1", "import")
    assert api.events() == [("workflow.started", str(workflow))]


def test_a_command_that_is_sent_again_later_gets_the_same_workflow(api: Api) -> None:
    assert [api.start("import", "c-1")[0] for _ in range(3)] == [201, 200, 200]
    assert len(api.started()) == len(api.events()) == 1


def test_different_commands_start_different_workflows(api: Api) -> None:
    ids = iter([f"c-{number}" for number in range(10)])
    answers = at_the_same_moment(10, lambda: api.start("import", next(ids)), url=api.url, table="workflow")
    assert {status for status, _ in answers} == {201}
    assert len({workflow for _, workflow in answers}) == len(api.events()) == 10


def test_a_command_id_that_is_reused_for_another_workflow_is_refused(api: Api) -> None:
    assert api.start("import", "c-1")[0] == 201
    status, answer = api.start("export", "c-1")
    assert (status, "import" in answer) == (409, True)
    assert [name for _, _, name in api.started()] == ["import"]


@pytest.mark.parametrize("command_id", [None, "", "x" * 256, ["c-1"]], ids=repr)
def test_a_command_without_a_usable_id_is_refused_and_starts_nothing(api: Api, command_id: object) -> None:
    status, answer = api.start("import", command_id)
    assert (status, "command_id must be" in answer) == (400, True)
    assert (api.started(), api.events()) == ([], [])


def test_the_demo_sends_one_command_three_times_and_starts_one_workflow() -> None:
    done = run(sys.executable, "-m", "examples.commands", database_url="postgresql://127.0.0.1:1/none")
    assert done.returncode == 0, done.stdout
    answers = [line for line in done.stdout.splitlines() if line.startswith("20")]
    assert Counter(line.split()[0] for line in answers) == {"201": 1, "200": 2}
    assert "3 commands, 1 workflow started, 1 event\n" in done.stdout
