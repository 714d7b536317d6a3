"""`outbox health`, `/healthz` and `/readyz`: what probes see of processes on this host."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outbox import current_outbox
from outbox.admin.web import make_app
from outbox.admin.web.probes import Probes
from outbox.cli import cli
from outbox.core import Outbox
from outbox.storage.operator_models import Process
from outbox.telemetry.heartbeat import Heartbeat, read_beats
from tests.admin.doctor.published_processes import publish_process
from tests.admin.web.client import Client, anybody
from tests.conftest import Configure
from tests.support.table import becomes_true

# A process that does nothing but show that it is alive, until its standard input is closed.
BEATING = """
import sys
from pathlib import Path
from outbox.telemetry.heartbeat import Heartbeat
heartbeat = Heartbeat("worker", Path(sys.argv[1]), every_seconds=0.05)
heartbeat.start()
print("started", flush=True)
sys.stdin.read()
heartbeat.stop()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "health"


@pytest.fixture(autouse=True)
def _no_settings_of_others() -> Iterator[None]:
    """The settings are read once in a process."""
    current_outbox.forget()
    yield
    current_outbox.forget()


@pytest.fixture
def worker(place: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", BEATING, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            yield process
        finally:
            process.kill()


def health(place: Path, *options: str, **settings: str) -> tuple[int, str]:
    environment = {"OUTBOX_HEALTH_DIRECTORY": str(place)} | {f"OUTBOX_{name}": each for name, each in settings.items()}
    done = CliRunner().invoke(cli, ["health", *options], env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


class TestLiveness:
    NOWHERE = "postgresql://nobody:hush@127.0.0.1:1/nothing"

    def test_needs_no_database_and_no_broker(self, place: Path, worker: "subprocess.Popen[str]") -> None:
        nowhere = {"DATABASE_URL": self.NOWHERE, "REDIS_URL": "redis://127.0.0.1:1/0"}
        assert health(place, "--live", **nowhere) == (0, f"live: worker {worker.pid}\n")
        code, said = health(place, "--ready", **nowhere)
        assert (code, said.startswith("not ready: the database can't be used:"), "hush" in said) == (1, True, False)

    def test_a_process_that_is_stopped_is_not_alive(self, place: Path, worker: "subprocess.Popen[str]") -> None:
        worker.send_signal(signal.SIGSTOP)
        becomes_true(lambda: health(place, "--live", "--max-age", "0.5")[0] == 1)
        assert (
            f"not live: worker {worker.pid} has not written its heartbeat for"
            in health(place, "--live", "--max-age", "0.5")[1]
        )
        worker.send_signal(signal.SIGCONT)
        becomes_true(lambda: health(place, "--live", "--max-age", "5")[0] == 0)

    def test_a_process_that_was_killed_leaves_nothing(self, place: Path, worker: "subprocess.Popen[str]") -> None:
        worker.kill()
        worker.wait()
        assert health(place, "--live") == (1, "not live: no worker, scheduler or consumer of this user runs here\n")
        assert list(place.iterdir()) == []

    def test_a_process_that_ends_takes_its_file_along(self, place: Path, worker: "subprocess.Popen[str]") -> None:
        assert len(read_beats(place)) == 1
        worker.communicate()
        assert list(place.iterdir()) == []

    def test_others_can_not_write_there(self, place: Path, caplog: pytest.LogCaptureFixture) -> None:
        place.mkdir(mode=0o777)
        place.chmod(0o777)
        heartbeat = Heartbeat("worker", place)
        heartbeat.start()
        assert "others may write to it" in caplog.text
        heartbeat.stop()
        assert list(place.iterdir()) == []
        place.rmdir()
        heartbeat.start()
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        heartbeat.stop()


def test_a_process_is_ready_when_it_has_reported(
    configure: Configure, place: Path, worker: "subprocess.Popen[str]"
) -> None:
    box = configure(publish_seconds=10, health_directory=str(place))
    assert f"worker {worker.pid} has not reported" in health(place)[1]
    publish_process(box, host=socket.gethostname(), pid=worker.pid, seen=60)
    assert "has not reported to the database for 1 min" in health(place)[1]
    with box.dialect.connection():
        Process.update(seen_at=box.dialect.now()).execute(box.database)
    assert health(place) == (0, f"ready: worker {worker.pid}\n")
    with box.dialect.connection():
        Process.update(details={"ready": False}).execute(box.database)
    assert "delivers nothing" in health(place)[1]


class TestTheDashboard:
    def test_responds_to_probes_without_a_password(self, box: Outbox) -> None:
        client = Client(make_app(box, authenticate=lambda _: None))
        assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/")] == [200, 200, 403]

    def test_is_alive_and_not_ready_without_its_tables(self, box: Outbox) -> None:
        client: Any = Client(make_app(box, authenticate=anybody))
        with box.dialect.connection():
            box.dialect.run(f"DROP TABLE {box.dialect.tables.history}")
        assert [client.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 503]
        assert "outbox_event" not in client.get("/readyz").text

    def test_asks_once_while_the_database_does_not_respond(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        app = make_app(box, authenticate=anybody)
        asked, go_on, found = threading.Event(), threading.Event(), list[int]()

        def hang() -> None:
            asked.set()
            go_on.wait(20)

        monkeypatch.setattr(type(box), "check_schema", lambda self: hang())
        probes = Probes(app, dashboard=app.state.dashboard)
        first = threading.Thread(target=lambda: found.append(Client(probes).get("/readyz").status_code), daemon=True)
        first.start()
        assert asked.wait(60)
        # Unknown until then, and not asked a second time: that would hang.
        assert Client(probes).get("/readyz").status_code == 503
        go_on.set()
        first.join(60)
        assert found == [200]
        assert Client(probes).get("/readyz").status_code == 200


def test_a_forked_child_neither_beats_nor_keeps_the_lock(place: Path) -> None:
    code = BEATING.replace("sys.stdin.read()", "import os, time\nif os.fork() == 0:\n    time.sleep(60)\nos._exit(0)")
    with subprocess.Popen([sys.executable, "-c", code, str(place)], start_new_session=True) as parent:
        parent.wait()
    try:
        assert read_beats(place) == []
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
