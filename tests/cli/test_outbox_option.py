"""`--outbox NAME`: the commands work on one of several outboxes."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import outbox
from outbox.cli import WITHOUT_OUTBOX, cli
from outbox.core import Outbox
from outbox.errors import SettingsError
from outbox.storage.connect import open_database
from tests.cli.conftest import Command
from tests.support.table import emit_one

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def eu(box: Outbox, tmp_path: Path) -> Iterator[Outbox]:
    database: Any = open_database(f"sqlite:///{tmp_path / 'eu.sqlite3'}")
    yield outbox.configure(name="eu", database=database, dispatch="off", publish_seconds=0)
    database.close_all()


def test_chooses_the_outbox_of_one_command(box: Outbox, eu: Outbox, command: Command) -> None:
    emit_one()
    assert "eu.sqlite3" in command("init", "--outbox", "eu").stdout
    found = [json.loads(command("list", "--json", *options).stdout)["events"] for options in ([], ["--outbox", "eu"])]
    assert [len(each) for each in found] == [1, 0]
    assert outbox.current() is box


def test_proves_handlers_with_the_events_of_that_outbox(
    eu: Outbox, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    eu.create_tables()
    event = eu.emit("Order", 7, "order.placed")

    @outbox.handler("order.*", name="follow")
    def follow(event: outbox.Event) -> None:
        outbox.emit("Order", event.aggregate_id, "order.followed", on_duplicate="ignore")

    found = json.loads(command("prove", "shop", "--outbox", "eu", "--json", "--most-statements", "1").stdout)["proofs"]
    assert [(str(event.id) in each["event"], each["safe"]) for each in found] == [(True, True)]
    assert eu.database.execute_sql("SELECT count(*) FROM outbox_event").fetchone() == (1,)


def test_refuses_a_name_that_is_not_configured(eu: Outbox, command: Command) -> None:
    with pytest.raises(SettingsError, match=r"No outbox of this process is called 'us' \(eu\)"):
        command("status", "--outbox", "us")


def test_every_command_that_works_on_one_outbox_has_it(box: Outbox) -> None:
    def lacking(name: str, command: click.Command) -> list[str]:
        if isinstance(command, click.Group):
            return [each for key, inner in command.commands.items() for each in lacking(f"{name} {key}", inner)]
        return [] if any(option.name == "outbox" for option in command.params) else [name]

    assert {each for name, command in cli.commands.items() for each in lacking(name, command)} == WITHOUT_OUTBOX
