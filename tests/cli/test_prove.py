"""`outbox prove`: which handlers it tries, with which events, and how it ends."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest

import outbox
from outbox import testing
from outbox.core import Outbox
from outbox.events.event_types import event_types
from outbox.testing.proof import samples, scenarios
from outbox.testing.proof.made_up import made_up_event
from tests.cli.conftest import Command
from tests.conftest import Note
from tests.support.program import BIN, environment
from tests.support.servers import wait_until
from tests.support.table import emit_one

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@dataclass
class Line:
    article: UUID
    price: Decimal


@dataclass
class Placed:
    total: int
    at: datetime
    lines: list[Line]
    first: Line
    note: str | None = None
    tags: dict[str, str] = field(default_factory=dict)


@pytest.fixture(autouse=True)
def _code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The module `shop`: what the test itself declares."""
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(scenarios, "LATER_SECONDS", 0.0)
    monkeypatch.setattr(samples, "_samples", [])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    event_types.clear()
    yield
    event_types.clear()


def proved(command: Command, *options: str) -> tuple[int, dict[str, Any]]:
    done = command("prove", "shop", "--json", *options)
    return done.exit_code, json.loads(done.stdout)


def created(text: str) -> int:
    note: Any = Note.create(text=text)
    return int(note.id)


def seen_by(command: Command, *options: str) -> list[str]:
    """Return which events a handler of everything is tried with."""
    return [each["event"] for each in proved(command, "--handler", "all", *options)[1]["proofs"]]


def test_each_handler_is_proved_with_a_recorded_event(box: Outbox, command: Command) -> None:
    outbox.handler("order.placed", name="insert")(lambda event: Note.create(text=event.aggregate_id))
    outbox.handler("order.*", name="delete")(lambda _: Note.delete().execute())
    outbox.add_destination(outbox.Webhook("crm", "https://crm.invalid/hook", secret="whsec_" + "A" * 44))
    event = emit_one()
    done = command("prove", "shop")
    assert done.exit_code == 1
    assert f"insert, with <Event order.placed Order:0 {event.id}> (recorded): not safe when repeated;" in done.stdout
    assert "  with the inbox: safe when repeated, when called twice at the same time, when killed" in done.stdout
    assert f"delete, with <Event order.placed Order:0 {event.id}> (recorded): safe when repeated, " in done.stdout
    assert "1 of 2 handlers are safe.\nNot proved, because they act outside the database: crm.\n" in done.stdout


def test_the_exit_code_is_0_if_every_handler_is_safe(box: Outbox, command: Command) -> None:
    outbox.handler("order.placed", name="delete")(lambda _: Note.delete().execute())
    emit_one()
    code, found = proved(command)
    assert (code, [each["safe"] for each in found["proofs"]]) == (0, [True])
    assert found["proofs"][0]["variants"][0]["tried"] == {"repeated": 1, "at_once": 1, "killed": 1}


def test_a_handler_without_an_event_is_not_proved(box: Outbox, command: Command) -> None:
    outbox.handler("nothing.*", name="idle")(lambda _: None)
    code, found = proved(command)
    assert code == 1
    assert "there is no event for it (nothing.*)" in found["proofs"][0]["variants"][0]["problem"]


def test_events_come_from_files_samples_the_table_and_classes(box: Outbox, command: Command, tmp_path: Path) -> None:
    outbox.handler("*", name="all")(lambda _: None)
    outbox.event("order.made_up")(Placed)
    emit_one()
    kinds = [each.rpartition(" ")[2] for each in seen_by(command)]
    assert kinds == ["(recorded)", "up)"]

    @testing.sample
    def a_note() -> outbox.Event:
        return testing.make_event("order.sample", {"note": created("of the sample")})

    file = tmp_path / "event.json"
    file.write_text(json.dumps([{"event_type": "order.of_file", "aggregate_id": 7, "payload": {"total": 1}}]))
    found = seen_by(command, "--event", str(file), "--most-events", "9")
    assert [each.split()[1] for each in found] == ["order.of_file", "order.sample", "order.placed", "order.made_up"]
    assert "Aggregate:7" in found[0]
    assert len(seen_by(command, "--event", str(file), "--most-events", "1")) == 1


def test_what_a_sample_creates_is_there_for_the_handler_and_nowhere_else(box: Outbox, command: Command) -> None:
    @outbox.handler("order.placed", name="reads")
    def reads(event: outbox.Event) -> None:
        assert Note.get_by_id(event.payload["note"]).text == "of the sample"

    @testing.sample
    def a_note() -> list[outbox.Event]:
        return [testing.make_event("order.placed", {"note": created("of the sample")})]

    assert proved(command)[0] == 0
    assert Note.select().count() == 0


def test_a_sample_that_fails_is_named(box: Outbox, command: Command) -> None:
    outbox.handler("order.placed", name="all")(lambda _: None)
    testing.sample(lambda: 1 // 0)  # type: ignore[arg-type, return-value]  # it returns nothing
    with pytest.raises(testing.CannotProve, match=r"<lambda> failed: ZeroDivisionError: .*test_prove.py"):
        command("prove", "shop")


def test_a_file_that_is_no_event_is_named(box: Outbox, command: Command, tmp_path: Path) -> None:
    outbox.handler("order.placed", name="all")(lambda _: None)
    (tmp_path / "wrong.json").write_text('{"payload": {}}')
    with pytest.raises(testing.CannotProve, match=r"wrong.json is no event: KeyError: 'event_type'"):
        command("prove", "shop", "--event", str(tmp_path / "wrong.json"))


def test_events_of_classes_are_made_up_from_their_schema(box: Outbox) -> None:
    outbox.event("order.placed")(Placed)
    declared = event_types.latest("order.placed")
    assert declared is not None
    event = made_up_event(declared)
    assert event is not None
    assert event.data == Placed(
        1,
        datetime(2026, 1, 31, 12, tzinfo=UTC),
        [],
        Line(UUID("0198c0de-0000-7000-8000-000000000000"), event.data.first.price),
    )


SLOW = """
import os, pathlib, time
import outbox
from outbox.storage.connect import open_database

db = open_database(os.environ["SHOP"])
outbox.configure(database=db, publish_seconds=0).create_tables()


@outbox.handler("order.placed", name="slow")
def slow(event):
    pathlib.Path(os.environ["STARTED"]).touch()
    time.sleep(600)
"""


def test_the_copies_are_dropped_when_the_command_is_ended(url: str, sqlite_url: str, tmp_path: Path) -> None:
    """Ctrl-C is tried in tests/testing/test_prove.py."""
    (tmp_path / "slow_shop.py").write_text(SLOW)
    (tmp_path / "event.json").write_text('{"event_type": "order.placed"}')
    (tmp_path / "temporary").mkdir()
    settings = {"SHOP": sqlite_url, "STARTED": str(tmp_path / "started"), "TMPDIR": str(tmp_path / "temporary")}
    process = subprocess.Popen(
        [BIN / "outbox", "prove", "slow_shop", "--event", "event.json"],
        cwd=tmp_path,
        env=environment() | settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until((tmp_path / "started").exists)
        assert any((tmp_path / "temporary").iterdir())
        process.terminate()
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
    assert not any((tmp_path / "temporary").iterdir())
