"""What the documentation says is true: snippets run, and what exists is written down."""

import ast
import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dev
import outbox
from outbox.cli import cli
from outbox.settings import PREFIX, Settings
from tests.support.program import run_python

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
DECISIONS_INDEX = ROOT / "docs" / "explanation" / "decisions" / "index.md"
DECISIONS = sorted(set(DECISIONS_INDEX.parent.glob("*.md")) - {DECISIONS_INDEX})

SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")

# Visible in the package because `configure` hands it on; handlers are registered by `outbox.handler`.


def everything() -> str:
    return "\n".join(page.read_text() for page in PAGES)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Snippets


@pytest.mark.parametrize("page", [page for page in PAGES if SNIPPET.search(page.read_text())], ids=name_of)
def test_the_snippets_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    program = "\n".join(SNIPPET.findall(page.read_text()))
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


# What an application has before it reads the README.
APPLICATION = """
import dramatiq, outbox, peewee
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker

REDIS_URL = "redis://localhost:6379/0"
db = peewee.SqliteDatabase("app.db", pragmas={"journal_mode": "wal"}, lock_type="IMMEDIATE")
dramatiq.set_broker(StubBroker())

class Order(peewee.Model):
    customer, total = peewee.CharField(), peewee.IntegerField()

@dramatiq.actor
def charge(order_id): ...

db.bind([Order])
outbox.configure(database=db).create_tables()
db.create_tables([Order])
"""
AFTERWARDS = """
charge.broker = broker
with db.atomic():
    charge.send(order.id)
print([(row.kind, row.event_type, row.payload["args"]) for row in outbox.OutboxEvent.select()])
"""


def test_the_first_lines_of_the_readme_send_jobs_in_an_application_that_exists(tmp_path: Path) -> None:
    first, *_ = re.findall(r"^```py\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert first.count("\n") <= 10
    command = [sys.executable, "-W", "error", "-c", APPLICATION + first + AFTERWARDS]
    environment = {"OUTBOX_DISPATCH": "off"}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.stdout, result.stderr) == ("[('job', 'charge', [1]), ('job', 'charge', [1])]\n", "")


def test_the_first_snippet_of_the_readme_prints_what_the_readme_says(tmp_path: Path) -> None:
    first = SNIPPET.findall(README.read_text())[0]
    command = [sys.executable, "-c", first]
    result = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "Charging ada 20 euros\n"
    assert f"It prints `{result.stdout.strip()}`" in README.read_text()


def test_the_first_snippet_can_be_pasted_into_an_interactive_python(tmp_path: Path) -> None:
    first = SNIPPET.findall(README.read_text())[0]  # there a blank line ends a block
    command = [sys.executable, "-i", "-q"]
    result = subprocess.run(
        command, input=f"{first}\n", cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60, check=True
    )
    assert "Charging ada 20 euros" in result.stdout
    assert "Error" not in result.stderr


# Settings, commands, names


@pytest.mark.parametrize("page", [*PAGES, ROOT / ".env.example", ROOT / "docker-compose.yml"], ids=name_of)
def test_every_variable_that_is_mentioned_exists(page: Path) -> None:
    known = {f"{PREFIX}{field.name.upper()}" for field in dataclasses.fields(Settings)}
    mentioned = set(re.findall(r"\bOUTBOX_[A-Z_]*[A-Z]\b", page.read_text()))
    assert {name for name in mentioned - known if not name.startswith("OUTBOX_TEST_")} == set()


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_command_is_documented(command: str) -> None:
    assert re.search(rf"\$ (?:\S+ run )?outbox {command}\b", everything())


@pytest.mark.parametrize("command", ["run", "test"])
def test_the_two_commands_for_newcomers_exist_and_are_on_the_first_page(command: str) -> None:
    assert command in dev.COMMANDS
    assert f"$ python3 dev.py {command} " in README.read_text()


@pytest.mark.parametrize("name", outbox.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert re.search(rf"\boutbox\.{name}\b", everything())


def test_every_column_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "tables.md").read_text()
    cells = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert set(outbox.OutboxEvent._meta.sorted_field_names) - set(re.findall(r"`(\w+)`", cells)) == set()


# Links


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_a_decision_has_context_decision_and_consequences_and_is_in_the_index(page: Path) -> None:
    title, *headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequences"]
    assert f"[{title}]({page.name})" in (DECISIONS_INDEX).read_text()


# Layers: scheduler → dramatiq → the rest of the library, and the command line around them


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(source: str) -> Iterator[str]:
    """Every module that a source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_from(path: Path, *packages: str) -> set[str]:
    """What a file imports of these packages."""
    return {
        name
        for name in imports(path.read_text())
        if any(name == each or name.startswith(f"{each}.") for each in packages)
    }


def is_in(path: Path, *folders: str) -> bool:
    return any(path.is_relative_to(ROOT / "outbox" / folder) for folder in folders)


def is_command_line(path: Path) -> bool:
    return is_in(path, "cli")


def is_the_library(path: Path) -> bool:
    facade = path == ROOT / "outbox" / "__init__.py"  # it offers the names of every layer, and imports none of them
    return not facade and not is_in(path, "cli", "dramatiq", "scheduler", "testing")


def test_imports_are_found_wherever_they_stand() -> None:
    source = "import a.b\nfrom c import d\ndef f():\n    from e.f import g\n    import h as i\n"
    assert set(imports(source)) == {"a.b", "c.d", "e.f.g", "h"}


@pytest.mark.parametrize("path", [path for path in modules("outbox") if is_the_library(path)], ids=name_of)
def test_the_library_knows_neither_dramatiq_nor_the_layers_above(path: Path) -> None:
    assert imports_from(path, "dramatiq", "apscheduler", "outbox.dramatiq", "outbox.scheduler") == set()


@pytest.mark.parametrize("path", [*modules("outbox/dramatiq"), *modules("jobs")], ids=name_of)
def test_what_knows_dramatiq_knows_nothing_of_the_scheduler(path: Path) -> None:
    assert imports_from(path, "apscheduler", "outbox.scheduler", "scheduler") == set()


@pytest.mark.parametrize("path", [*modules("outbox/scheduler"), *modules("scheduler")], ids=name_of)
def test_the_scheduler_leaves_dramatiq_to_the_layer_below(path: Path) -> None:
    assert imports_from(path, "dramatiq") == set()


@pytest.mark.parametrize("package", ["outbox", "jobs", "scheduler"])
def test_nothing_imports_the_packages_that_a_procfile_names(package: str) -> None:
    assert [name_of(path) for path in modules(package) if imports_from(path, "jobs", "scheduler")] == []


def test_five_modules_alone_import_redis() -> None:
    files = [path for package in ("outbox", "jobs", "scheduler") for path in modules(package)]
    knowing = [name_of(path) for path in files if imports_from(path, "redis")]
    assert knowing == [
        "outbox/destinations/redis_commands.py",
        "outbox/destinations/redis_outcomes.py",
        "outbox/dramatiq/redis_broker.py",
        "outbox/dramatiq/wakeup_listener.py",
        "outbox/storage/redis_client.py",
    ]


@pytest.mark.parametrize("package", ["redis", "httpx", "httpcore", "pycurl", "dramatiq"])
def test_importing_the_library_imports_nothing_that_may_not_be_installed_or_is_slow(package: str) -> None:
    assert run_python(f"import sys, outbox; print({package!r} in sys.modules)") == "False\n"


def test_nothing_imports_the_command_line() -> None:
    files = [path for package in ("outbox", "jobs", "scheduler") for path in modules(package)]
    assert [name_of(path) for path in files if not is_command_line(path) and imports_from(path, "outbox.cli")] == []
