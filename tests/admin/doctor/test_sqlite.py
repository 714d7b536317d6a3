"""The doctor's checks of the file of an SQLite database."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import peewee
import pytest

from outbox.admin.doctor.check import NOTE, OK, PROBLEM, WARNING
from outbox.admin.doctor.run_checks import run_checks
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database
from tests.admin.doctor.findings import advice_of, commands_in, finding_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.fixture
def box(path: Path) -> Iterator[Outbox]:
    box = Outbox(Settings(dispatch="off"), database=open_database(f"sqlite:///{path}"))
    box.create_tables()
    yield box
    box.database.close_all()  # type: ignore[attr-defined]


def test_a_file_that_the_library_opens_is_fine(box: Outbox) -> None:
    assert finding_of(box, "file").level == OK


def test_another_journal_mode_than_wal_is_a_problem_and_the_advice_fixes_it(path: Path) -> None:
    database = peewee.SqliteDatabase(str(path), pragmas={"journal_mode": "delete"}, lock_type="IMMEDIATE")
    box = Outbox(Settings(dispatch="off"), database=database)
    box.create_tables()
    found = finding_of(box, "file")
    assert (found.level, "journal mode is delete, not wal" in found.what) == (PROBLEM, True)
    fixed = Outbox(Settings(dispatch="off"), database=peewee.SqliteDatabase(str(path), lock_type="IMMEDIATE"))
    with fixed.dialect.connection():
        fixed.dialect.run(commands_in(found)[0])
    assert finding_of(fixed, "file").level == OK


def test_a_file_that_can_only_be_read_is_a_problem(box: Outbox, path: Path) -> None:
    with box.dialect.connection():  # so that the files beside it are there
        read_only = peewee.SqliteDatabase(f"file:{path}?mode=ro", uri=True, lock_type="IMMEDIATE")
        found = finding_of(Outbox(Settings(dispatch="off"), database=read_only), "file")
        assert (found.level, "can't be written to" in found.what) == (PROBLEM, True)
        assert str(path.parent) in advice_of(found)
        read_only.close()


def test_a_transaction_that_keeps_the_file_locked_is_a_warning(box: Outbox, path: Path) -> None:
    impatient = peewee.SqliteDatabase(str(path), pragmas={"busy_timeout": 50}, lock_type="IMMEDIATE")
    looking = Outbox(Settings(dispatch="off"), database=impatient)
    with box.dialect.connection(), box.database.atomic("IMMEDIATE"):
        found = finding_of(looking, "file")
        assert (found.level, "held the write lock" in found.what) == (WARNING, True)
    assert finding_of(looking, "file").level == OK


def test_a_disk_that_is_nearly_full_is_a_problem(box: Outbox) -> None:
    found = finding_of(box, "file", free_bytes=2**62)
    assert (found.level, "MiB left" in found.what) == (PROBLEM, True)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_a_file_that_all_users_can_read_is_a_warning_and_the_advice_fixes_it(suffix: str) -> None:
    with TemporaryDirectory() as folder:  # tmp_path is below a folder that only its owner may enter
        Path(folder).chmod(0o711)
        box = Outbox(Settings(dispatch="off"), database=open_database(f"sqlite:///{folder}/an events.db"))
        box.create_tables()
        with box.dialect.connection():
            assert finding_of(box, "file").level == OK
            path = Path(f"{folder}/an events.db{suffix}")
            path.chmod(0o644)
            found = finding_of(box, "file")
            assert (found.level, f"the mode of {path} allows it" in found.what) == (WARNING, True)
            Path(folder).chmod(0o700)
            assert finding_of(box, "file").level == OK  # other users can't enter the folder
            Path(folder).chmod(0o711)
            subprocess.run(shlex.split(commands_in(found)[0]), check=True)
            assert finding_of(box, "file").level == OK
        box.database.close_all()  # type: ignore[attr-defined]


def test_the_integrity_is_checked_with_thorough_only(box: Outbox, path: Path) -> None:
    assert finding_of(box, "integrity").level == NOTE
    assert finding_of(box, "integrity", thorough=True).level == OK


def test_a_damaged_file_is_a_problem(box: Outbox, path: Path) -> None:
    with box.dialect.connection():
        box.dialect.run("PRAGMA wal_checkpoint(TRUNCATE)")
        size = box.dialect.run("PRAGMA page_size").fetchone()[0]
        root = box.dialect.run("SELECT rootpage FROM sqlite_master WHERE name = 'outbox_audit'").fetchone()[0]
    box.database.close_all()  # type: ignore[attr-defined]
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    found = finding_of(box, "integrity", thorough=True)
    assert found.level == PROBLEM
    assert "damaged" in found.what


def test_a_file_that_is_no_database_is_a_problem_not_a_traceback(path: Path) -> None:
    path.write_bytes(b"no database at all" * 1000)
    found = run_checks(Outbox(Settings(dispatch="off"), database=open_database(f"sqlite:///{path}")))
    assert next(each for each in found if each.check == "database").level == PROBLEM


def test_events_in_memory_are_a_note() -> None:
    box = Outbox(Settings(dispatch="off"), database=peewee.SqliteDatabase(":memory:"))
    box.create_tables()
    assert finding_of(box, "file").level == NOTE
