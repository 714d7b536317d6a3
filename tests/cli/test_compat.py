"""`outbox compat` and `outbox schema`: what new code makes of what is in the table."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

import outbox
from outbox import current_outbox
from outbox.admin import compat
from outbox.core import Outbox
from outbox.events.event_types import event_types
from outbox.storage.models import OutboxEvent
from tests.cli.conftest import Command
from tests.conftest import Configure
from tests.support.encryption import NEW, with_keys
from tests.support.table import emit, emit_one


@dataclass
class Placed:
    total: int
    currency: str = "EUR"


@dataclass
class Cancelled:
    reason: str


@pytest.fixture(autouse=True)
def _code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module `new_code`: what the test itself declares."""
    monkeypatch.setitem(sys.modules, "new_code", ModuleType("new_code"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    event_types.clear()
    yield
    event_types.clear()


def checked(command: Command, *options: str) -> tuple[int, dict[str, Any]]:
    done = command("compat", "new_code", "--json", *options)
    return done.exit_code, json.loads(done.stdout)


def kinds(report: dict[str, Any]) -> list[tuple[str, int]]:
    return [(each["kind"], each["events"]) for each in report["problems"]]


def handle_everything() -> None:
    outbox.handler("*", name="all")(lambda _: None)


def test_code_that_understands_everything_is_compatible(box: Outbox, command: Command) -> None:
    outbox.event("order.placed")(Placed)
    handle_everything()
    emit(2, payload={"total": 1})
    box.process_pending_events()
    emit(3, payload={"total": 1, "more": 2})
    looked_at = {"unfinished": 3, "failed": 0, "recent": 2}
    assert checked(command) == (0, {"looked_at": looked_at, "limited": [], "problems": []})
    said = command("compat", "new_code").stdout
    assert said == (
        "Events that were looked at: 3 unfinished, 0 failed, 2 recent.\nThis code understands all of them.\n"
    )


def test_what_the_classes_can_not_read_is_told_with_a_count_and_an_example(box: Outbox, command: Command) -> None:
    handle_everything()
    delivered = emit_one(payload={"sum": 1})
    box.process_pending_events()
    waiting = emit(2, payload={"total": "hush"})
    newer = emit_one(payload={"total": 1}, headers={"event_version": 2})
    outbox.event("order.placed")(Placed)
    code, report = checked(command)
    assert code == 1
    assert kinds(report) == [("unreadable", 2), ("newer_version", 1), ("unreadable", 1)]
    told = {each["example"]: each["what"] for each in report["problems"]}
    assert "version 1 can't be read" in told[str(delivered.id)]
    assert "$.total: is missing" in told[str(delivered.id)]
    assert "version 2 is newer than this code" in told[str(newer.id)]
    assert {str(each.id) for each in waiting} & told.keys()
    said = command("compat", "new_code").stdout
    assert "$.total: Expected `int`, got `str`" in said
    assert said.endswith("\n3 problems.\n")
    assert "hush" not in said


def test_failed_events_are_looked_at(box: Outbox, command: Command) -> None:
    @outbox.handler("*", name="all")
    def refuse(_: outbox.Event) -> None:
        raise outbox.Reject("no")

    emit_one(payload={})
    box.process_pending_events()
    outbox.event("order.placed")(Placed)
    code, report = checked(command)
    assert (code, report["looked_at"], kinds(report)) == (
        1,
        {"unfinished": 0, "failed": 1, "recent": 0},
        [("unreadable", 1)],
    )


def test_upcasters_are_used_and_gaps_are_told(box: Outbox, command: Command) -> None:
    handle_everything()
    emit_one(payload={"sum": 3})
    outbox.event("order.placed", version=2)(Placed)
    code, report = checked(command)
    assert (code, kinds(report)) == (1, [("declaration", 0), ("unreadable", 1)])
    assert "has no upcaster from version 1" in report["problems"][0]["what"]
    outbox.upcaster("order.placed", from_version=1)(lambda payload: {"total": payload["sum"]})
    assert checked(command)[0] == 0


def test_what_an_upcaster_quotes_of_a_payload_is_not_told(box: Outbox, command: Command) -> None:
    handle_everything()
    emit_one(payload={"sum": "hush-hush-hush"})
    outbox.event("order.placed", version=2)(Placed)
    outbox.upcaster("order.placed", from_version=1)(lambda payload: {"total": int(payload["sum"])})
    (problem,) = checked(command)[1]["problems"]
    assert "invalid literal for int() with base 10: '***'" in problem["what"]


def test_a_handler_of_a_class_that_is_no_longer_the_latest_is_told(command: Command) -> None:
    outbox.event("order.placed")(Placed)
    outbox.handler(Placed, name="billing")(lambda _: None)
    outbox.event("order.placed", version=2)(Cancelled)
    outbox.upcaster("order.placed", from_version=1)(lambda payload: payload)
    _, report = checked(command)
    assert "The handler billing takes tests.cli.test_compat.Placed, and the latest version is" in str(report)


def test_a_type_that_no_destination_wants_is_told_while_it_waits(box: Outbox, command: Command) -> None:
    outbox.handler("order.*", name="orders")(lambda _: None)
    emit(2, "user.created")
    code, report = checked(command)
    assert (code, kinds(report)) == (1, [("unwanted", 2)])
    outbox.ignore("user.*")
    assert checked(command)[0] == 0


def test_recorded_destinations_that_the_code_lacks_are_told(box: Outbox, command: Command) -> None:
    for name in ("kept", "gone", "renamed", "retired", "of others"):
        outbox.handler("order.*", name=name)(lambda _: None)
    box.become_worker()
    current_outbox.registry.clear()
    outbox.handler("order.*", name="kept")(lambda _: None)
    outbox.handler("order.*", name="new", replaces="renamed")(lambda _: None)
    outbox.retire("retired")
    code, report = checked(command, "--elsewhere", "of others")
    assert (code, kinds(report)) == (1, [("missing_destination", 0)])
    assert "Workers have recorded the destination 'gone'" in report["problems"][0]["what"]


def test_no_more_is_read_than_asked_for(box: Outbox, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "PAGE", 2)
    handle_everything()
    emit(5, payload={"total": 1})
    outbox.event("order.placed")(Placed)
    code, report = checked(command, "--limit", "3")
    assert (code, report["looked_at"]["unfinished"], report["limited"]) == (0, 3, ["unfinished", "recent"])


def test_nothing_is_written(box: Outbox, command: Command) -> None:
    outbox.event("order.placed")(Placed)
    handle_everything()
    emit(3, payload={"total": 1})
    before = list(OutboxEvent.select().order_by(OutboxEvent.seq).dicts())
    assert checked(command)[0] == 0
    assert list(OutboxEvent.select().order_by(OutboxEvent.seq).dicts()) == before


def test_encrypted_events_are_read_with_the_key_and_told_without_it(
    configure: Configure, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = configure(encryption_keys=NEW.text)
    outbox.event("order.placed")(Placed)
    handle_everything()
    emit_one(payload={"total": 1})
    assert checked(command)[0] == 0
    monkeypatch.setattr(current_outbox, "_current", with_keys(box))
    code, report = checked(command)
    assert (code, kinds(report)) == (1, [("encrypted", 1)])


def test_jobs_are_left_out(box: Outbox, command: Command) -> None:
    emit_one("job")
    OutboxEvent.update(kind="job").execute()
    looked_at = {"unfinished": 0, "failed": 0, "recent": 0}
    assert checked(command) == (0, {"looked_at": looked_at, "limited": [], "problems": []})


class TestSchema:
    def test_prints_the_json_schema_of_every_version(self, command: Command) -> None:
        outbox.event("order.placed", version=2)(Placed)
        outbox.event("order.cancelled")(Cancelled)
        first, second = json.loads(command("schema", "new_code", "--json").stdout)
        assert (first["type"], first["version"]) == ("order.cancelled", 1)
        assert second["class"] == "tests.cli.test_compat.Placed"
        properties = second["schema"]["$defs"]["Placed"]["properties"]
        assert properties == {"total": {"type": "integer"}, "currency": {"type": "string", "default": "EUR"}}

    def test_lists_them(self, command: Command) -> None:
        assert "no event types" in command("schema", "new_code").stdout
        outbox.event("order.placed", version=2)(Placed)
        outbox.upcaster("order.placed", from_version=1)(lambda payload: payload)
        head, row = command("schema", "new_code").stdout.splitlines()
        assert head.split() == ["TYPE", "VERSION", "CLASS", "UPCASTERS", "FROM"]
        assert row.split() == ["order.placed", "2", "tests.cli.test_compat.Placed", "1"]
