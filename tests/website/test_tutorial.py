"""The tutorial works: its files, written as it says, do what it says, on SQLite and then on PostgreSQL and Redis."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from outbox.settings import PREFIX, Settings
from tests.support.processes import Program
from tests.support.program import BIN
from tests.support.servers import PATIENCE_SECONDS, Redis, free_port, wait_until
from website.pages import DOCS

TUTORIAL = DOCS / "tutorial"
FILE = re.compile(r"^```\w+ title=\"([\w./-]+)\"\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXPORTED = re.compile(r"^\$ export (OUTBOX_BACKOFF\w+|WAREHOUSE\w+)=(\S+)$", re.MULTILINE)


class Shop:
    """The reader's folder, and the terminals in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop").mkdir()
        (folder / "shop" / "__init__.py").touch()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self.environment = inherited | {"PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(folder)}
        self.programs: list[Program] = []

    def follow(self, page: str, section: str | None = None, **replaced: str) -> None:
        """Write the files of a page, or of a section of it, and set the variables that it exports."""
        text = (TUTORIAL / page).read_text()
        if section is not None:
            _, found, text = text.partition(f"\n## {section}\n")
            assert found, section
            text = text.partition("\n## ")[0]
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        for name, content in FILE.findall(text):
            (self.folder / name).write_text(content)
        self.environment.update(EXPORTED.findall(text))

    def run(self, *command: str, code: int = 0, **environment: str) -> str:
        """Run a command to its end, and return what it printed."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def order(self, customer: str, total: int, **environment: str) -> str:
        return self.run(sys.executable, "-m", "shop.orders", customer, str(total), code=0, **environment)

    def start(self, *command: str, ready: str, **environment: str) -> Program:
        output = self.folder / f"{len(self.programs)}.log"
        there = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(self.folder), *command]
        program = Program(there, self.environment | environment, output)
        self.programs.append(program)
        prints(program, ready)
        return program


def prints(program: Program, text: str) -> None:
    wait_until(lambda: text in program.said() or not program.running)
    assert text in program.said(), program.said()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    for program in shop.programs:
        program.kill()


@pytest.fixture
def port() -> int:
    return free_port()


def test_the_first_event(shop: Shop) -> None:
    shop.follow("first-event.md")
    assert shop.order("ada", 20, OUTBOX_DISPATCH="off") == "placed order 1\n"
    heading, event = shop.run("outbox", "list").splitlines()
    assert heading in (TUTORIAL / "first-event.md").read_text()
    assert event.split()[3:] == ["pending", "event", "order.placed", "Order:1", "0/5"]
    up = shop.start("outbox", "up", "shop.handlers", ready="Dear ada, we have your order 1.", OUTBOX_SWEEP_SECONDS="1")
    shop.order("bob", 5, OUTBOX_DISPATCH="off")
    prints(up, "Dear bob, we have your order 2.")
    rolled_back = (
        "from shop.models import Order, db\nfrom shop.orders import place_order\n"
        "with db.atomic() as transaction:\n    place_order('eve', 7)\n    transaction.rollback()\n"
        "print(Order.select().where(Order.customer == 'eve').count())"
    )
    assert shop.run(sys.executable, "-c", rolled_back, OUTBOX_DISPATCH="off") == "0\n"
    assert "Order:3" not in shop.run("outbox", "list")
    twice = "import outbox\nfrom shop.models import db\nwith db.atomic():\n    outbox.emit('Order', 1, 'order.placed')"
    shop.run(sys.executable, "-c", twice, code=1, OUTBOX_DISPATCH="off")


def test_servers_failures_and_a_receiver(shop: Shop, postgres_url: str, redis_server: Redis, port: int) -> None:
    shop.environment |= {"OUTBOX_DATABASE_URL": postgres_url, "OUTBOX_REDIS_URL": redis_server.url}
    shop.environment |= {"OUTBOX_NAMESPACE": f"tutorial-{port}", "OUTBOX_SWEEP_SECONDS": "1"}
    shop.follow("first-event.md")
    shop.run("outbox", "init")
    worker = shop.start("outbox", "worker", "shop.handlers", "-p", "1", ready="ready for action")
    shop.start("outbox", "scheduler", ready="scheduler started")
    shop.order("carl", 12)
    prints(worker, "Dear carl, we have your order 1.")
    shop.order("dora", 8)
    prints(worker, "Dear dora, we have your order 2.")
    worker.kill()
    assert shop.order("emil", 9) == "placed order 3\n"
    worker = shop.start("outbox", "worker", "shop.handlers", "-p", "1", ready="Dear emil, we have your order 3.")
    worker.kill()

    shop.follow("failures.md", **{"8000": str(port)})
    worker = shop.start("outbox", "worker", "shop.handlers", "-p", "1", ready="ready for action")
    shop.order("emma", 30)
    prints(worker, "charged order 4")
    assert wait_until(lambda: "order.paid" in shop.run("outbox", "list", "--destination", "warehouse"))
    (packing,) = re.findall(r"^packing order \d+$", (TUTORIAL / "failures.md").read_text(), re.MULTILINE)
    receiver = shop.start(
        *("flask", "--app", "warehouse", "run", "--port", str(port)),
        ready=packing,
        OUTBOX_DATABASE_URL="sqlite:///warehouse.db",
    )

    shop.order("fritz", 500)
    prints(worker, "Dear fritz, we have your order 5.")
    assert wait_until(lambda: "more than the limit" in shop.run("outbox", "list", "--status", "failed"))
    worker.kill()
    shop.follow("failures.md", **{"8000": str(port), "LIMIT = 100\n": "LIMIT = 1000\n"})
    worker = shop.start("outbox", "worker", "shop.handlers", "-p", "1", ready="ready for action")
    shop.run("outbox", "retry", "--destination", "charge", "--yes")
    prints(worker, "charged order 5")
    prints(receiver, "packing order 5")
    assert "Dear fritz" not in worker.said()


def test_a_job_that_cannot_be_lost(shop: Shop, redis_server: Redis) -> None:
    page, orders = "jobs.md", (sys.executable, "-m", "shop.orders")
    shop.environment |= {"REDIS_URL": f"{redis_server.url.rpartition('/')[0]}/7", "OUTBOX_SWEEP_SECONDS": "1"}
    shop.follow(page, "A plain actor.send")
    worker = shop.start("dramatiq", "shop.actors", "--processes", "1", ready="ready for action")
    assert shop.run(*orders, "ada", "20") == "placed order 1\n"
    prints(worker, "charged order 1")
    assert shop.run(*orders, "bob", "5", CRASH="1", code=-9) == "placed order 2\n"
    assert shop.run(*orders) == "1 ada paid 20 of 20\n2 bob paid 0 of 5\n"
    worker.kill()

    shop.follow(page, "Make it transactional")
    shop.run("outbox", "init", "shop.broker")
    start = ("outbox", "worker", "shop.actors", "--processes", "1")
    worker = shop.start(*start, ready="ready for action")
    shop.start("outbox", "scheduler", "shop.broker", ready="scheduler started")
    shop.run(*orders, "carl", "12")
    prints(worker, "charged order 3")
    assert shop.run(*orders, "dora", "8", CRASH="1", code=-9) == "placed order 4\n"
    prints(worker, "charged order 4")
    worker.kill()
    shop.run(*orders, "emma", "30")
    pending = shop.run("outbox", "list", "-m", "shop.broker", "--actor", "charge", "--status", "pending")
    heading, job = pending.splitlines()
    assert heading in (TUTORIAL / page).read_text()
    assert job.split()[5:] == ["pending", "charge", "default", "0/5", "5"]
    worker = shop.start(*start, ready="charged order 5")
    rolled_back = (
        "from shop.models import Order, db\nfrom shop.orders import place_order\n"
        "with db.atomic() as transaction:\n    place_order('eve', 7)\n    transaction.rollback()"
    )
    shop.run(sys.executable, "-c", rolled_back)
    worker.kill()

    # The first order's time starts again with the second command, however long the commands take.
    expiry, section = (sys.executable, "-m", "shop.expiry"), "Later, once, or not at all"
    shop.follow(page, section, **{"seconds=3": "hours=1"})
    worker = shop.start(*start, ready="ready for action")
    shop.run(*expiry, "1")
    shop.run(*expiry, "2")
    assert shop.run(*expiry, "2", "confirm") == "taken back: True\n"
    shop.follow(page, section)
    shop.run(*expiry, "1")
    prints(worker, "order 1 has expired")

    shop.run(sys.executable, "-c", "from shop.actors import charge; charge.send(1)")
    assert wait_until(lambda: "1 ada paid 40 of 20" in shop.run(*orders))
    worker.kill()
    shop.follow(page, "One effect")
    worker = shop.start(*start, "--verbose", ready="ready for action")
    shop.run(*orders, "fritz", "9")
    prints(worker, "charged order 6")
    shop.run(sys.executable, "-c", "from shop.actors import charge; charge.send(6)")
    prints(worker, "Skipped: charge has processed message 6 before.")
    assert shop.run(*orders).splitlines()[1:] == [
        "2 bob paid 0 of 5",
        "3 carl paid 12 of 12",
        "4 dora paid 8 of 8",
        "5 emma paid 30 of 30",
        "6 fritz paid 9 of 9",
    ]
    said = "".join(program.said() for program in shop.programs)
    assert said.count("order 1 has expired") == 1
    assert "order 2 has expired" not in said


def yaml_blocks(page: Path) -> list[Any]:
    blocks = re.findall(r"^```yaml.*?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [YAML(typ="safe").load(block) for block in blocks]


def test_the_compose_file_of_the_tutorial_is_valid(tmp_path: Path) -> None:
    ((name, content),) = FILE.findall((TUTORIAL / "production.md").read_text())
    (tmp_path / name).write_text(content)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", tmp_path / name]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_manifests_for_kubernetes_use_commands_and_settings_that_exist() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.__dataclass_fields__}
    manifests = yaml_blocks(DOCS / "how-to" / "kubernetes.md")
    assert [manifest["kind"] for manifest in manifests] == ["Job", "Deployment", "Deployment", "Deployment"]
    for manifest in manifests:
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        assert {variable["name"] for variable in container.get("env", [])} <= known
        program, command, *rest = container["command"]
        assert program == "outbox"
        options = [word for word in rest if word.startswith("-")]
        help_text = subprocess.run(
            [BIN / "outbox", command, "--help"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
        ).stdout
        assert [option for option in options if option not in help_text] == []
