"""A new SQLite file is readable by its owner only; the mode of an existing one stays as it is."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


def modes_while_open(path: Path) -> dict[str, str]:
    """Create the tables, and return the modes of all files while a connection is open."""
    box = Outbox(Settings(dispatch="off"), database=open_database(f"sqlite:///{path}"))
    box.create_tables()
    with box.dialect.connection(), box.database.atomic("IMMEDIATE"):
        box.emit("Order", 1, "order.placed", {"total": 1})
        return {each.name: oct(stat.S_IMODE(each.stat().st_mode)) for each in sorted(path.parent.iterdir())}


def test_a_new_file_and_those_beside_it_belong_to_their_owner_alone(path: Path) -> None:
    assert modes_while_open(path) == dict.fromkeys(("events.db", "events.db-shm", "events.db-wal"), "0o600")


def test_the_mode_of_an_existing_file_stays(path: Path) -> None:
    path.touch()
    path.chmod(0o640)
    assert modes_while_open(path) == dict.fromkeys(("events.db", "events.db-shm", "events.db-wal"), "0o640")


def test_a_file_behind_a_symbolic_link_is_created_as_private(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere.db"))
    assert modes_while_open(path)["elsewhere.db"] == "0o600"


def test_a_folder_that_does_not_exist_is_the_same_error_as_before(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/none/events.db")
    with pytest.raises(Exception, match="unable to open database file"):
        database.connect()
