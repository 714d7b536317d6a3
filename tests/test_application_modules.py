"""The user's modules on the command line: `outbox init your.module`, `outbox up your.module`."""

from pathlib import Path

import pytest

from tests.support.program import BIN, run

SHOP = """
import peewee
import outbox

outbox.configure(database=peewee.SqliteDatabase("shop.db", pragmas={"journal_mode": "wal"}, lock_type="IMMEDIATE"))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "broken.py").write_text("import there_is_no_such_module")
    return tmp_path


def test_init_makes_the_tables_where_the_module_configures_them(folder: Path) -> None:
    finished = run(BIN / "outbox", "init", "shop", cwd=folder)
    assert finished.returncode == 0
    assert finished.stdout.endswith("The tables are ready in sqlite:///shop.db\n")
    assert (folder / "shop.db").exists()
    assert not (folder / "outbox.db").exists()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("nowhere", "There is no module 'nowhere' in"),
        ("nowhere.handlers", "There is no module 'nowhere.handlers' in"),
        ("./shop.py", "Name the module as Python would import it: shop"),
        ("my/handlers.py", "Name the module as Python would import it: my.handlers"),
    ],
)
def test_a_wrong_name_is_one_clear_line(folder: Path, name: str, advice: str) -> None:
    finished = run(BIN / "outbox", "up", name, cwd=folder)
    assert finished.returncode == 2
    assert advice in finished.stdout
    assert finished.stdout.count("\n") == 1


def test_what_the_module_itself_can_not_import_is_not_blamed_on_its_name(folder: Path) -> None:
    finished = run(BIN / "outbox", "up", "broken", cwd=folder)
    assert finished.returncode != 0
    assert "No module named 'there_is_no_such_module'" in finished.stdout


def test_a_module_without_handlers_is_refused_before_anything_is_made(folder: Path) -> None:
    finished = run(BIN / "outbox", "up", "json", cwd=folder)
    assert finished.returncode == 2
    assert "`outbox up your.module`" in finished.stdout
    assert not (folder / "outbox.db").exists()


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder with files that have the names of packages which the commands import."""
    for name in ("redis", "prometheus_client", "uvicorn", "starlette", "dramatiq"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working directory')")
    return tmp_path


@pytest.mark.parametrize("command", [["init"], ["metrics"], ["status"], ["doctor"], ["worker", "-p", "1", "-t", "1"]])
def test_without_modules_nothing_is_imported_from_the_working_directory(trap: Path, command: list[str]) -> None:
    run(BIN / "outbox", "init", cwd=trap)
    finished = run(BIN / "outbox", *command, cwd=trap, redis_url="redis://127.0.0.1:1/0", dispatch="off")
    assert "imported from the working directory" not in finished.stdout
    assert "Traceback" not in finished.stdout


def test_with_a_module_its_neighbours_in_the_working_directory_can_be_imported(folder: Path) -> None:
    (folder / "neighbour.py").write_text("import shop")
    finished = run(BIN / "outbox", "init", "neighbour", cwd=folder)
    assert finished.stdout.endswith("The tables are ready in sqlite:///shop.db\n")
