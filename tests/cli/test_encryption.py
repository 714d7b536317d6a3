"""The commands and encrypted rows: what they show with the key and without it, and `outbox reencrypt`."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

import outbox
from outbox import current_outbox
from outbox.cli import cli
from outbox.core import Outbox
from outbox.encryption.keys import parse_keys
from tests.cli.conftest import Command
from tests.conftest import Configure
from tests.support.encryption import NEW, OLD, OTHER, damage, texts, with_keys
from tests.support.jobs import charge, row_of, stub_broker
from tests.support.table import emit_one, stored

__all__ = ["charge", "stub_broker"]

CARD = "4242 4242"


@pytest.fixture
def box(configure: Configure) -> Outbox:
    return configure(encryption_keys=f"{NEW.text} {OLD.text}")


@pytest.fixture
def without_keys(box: Outbox, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Commands of a process that has no keys."""
    monkeypatch.setattr(current_outbox, "_current", with_keys(box))
    return lambda *arguments, **options: CliRunner().invoke(cli, arguments, catch_exceptions=False)


def test_a_new_key_is_printed_alone_and_its_id_beside_it() -> None:
    done: Result = CliRunner().invoke(cli, ["encryption-key"])
    ((key,), _) = parse_keys(done.stdout)
    assert done.stdout == f"{done.stdout.strip()}\n"
    assert done.stderr == f"Its id is {key.id}.\n"
    assert CliRunner().invoke(cli, ["encryption-key"]).stdout != done.stdout


class TestShow:
    def test_decrypts_what_it_has_the_key_of(self, command: Command) -> None:
        event = emit_one(payload={"card": CARD}, headers={"trace": "abc"})
        shown = command("show", str(event.id)).output
        assert CARD in shown
        assert '"trace": "abc"' in shown
        assert json.loads(command("show", "--json", str(event.id)).output)["payload"] == {"card": CARD}

    def test_says_which_key_it_lacks(self, box: Outbox, without_keys: Command) -> None:
        event = box.emit("Order", 1, "order.placed", {"card": CARD})
        shown = without_keys("show", str(event.id)).output
        assert f"headers and payload: not shown: encrypted with the key {NEW.id}, which this process" in shown
        assert "outbox_encrypted" not in shown
        told = json.loads(without_keys("show", "--json", str(event.id)).output)
        assert list(told["payload"]) == ["outbox_encrypted"]
        assert NEW.id in told["unreadable"]

    def test_says_that_a_row_was_changed(self, command: Command) -> None:
        event = emit_one(payload={"card": CARD})
        damage(stored(event))
        assert "can't be decrypted: it was changed" in command("show", str(event.id)).output

    def test_decrypts_jobs(self, command: Command, charge: Any) -> None:
        job = row_of(outbox.send(charge, CARD))
        assert f'args:\n[\n  "{CARD}"\n]' in command("show", str(job.id)).output

    def test_says_which_key_a_job_needs(self, box: Outbox, charge: Any, without_keys: Command) -> None:
        id = str(row_of(send_with(box, charge)).id)
        assert f"headers and message: not shown: encrypted with the key {NEW.id}" in without_keys("show", id).output


def send_with(box: Outbox, actor: Any) -> Any:
    """Send a job as a process that has the keys."""
    current_outbox._current, before = box, current_outbox._current
    try:
        return outbox.send(actor, CARD)
    finally:
        current_outbox._current = before


def test_list_shows_the_arguments_of_jobs_it_has_the_key_of(command: Command, charge: Any) -> None:
    outbox.send(charge, CARD)
    assert CARD in command("list", "--actor", "charge").output


def test_list_says_which_key_a_job_needs(box: Outbox, without_keys: Command, charge: Any) -> None:
    send_with(box, charge)
    assert f"encrypted with the key {NEW.id}" in without_keys("list", "--actor", "charge").output


def test_search_by_key_and_aggregate_works_without_the_key(box: Outbox, without_keys: Command) -> None:
    event = box.emit("Order", 7, "order.placed", {"card": CARD}, idempotency_key="the-key")
    for arguments in (("--key", "the-key", "--type", "order.placed"), ("--aggregate", "Order:7")):
        assert str(event.id) in without_keys("list", *arguments).output


class TestReencrypt:
    def test_asks_and_says_what_it_did(self, box: Outbox, command: Command) -> None:
        with_keys(box).emit("Order", 1, "order.placed", {"card": CARD})
        asked = command("reencrypt", input="n\n")
        assert asked.exit_code == 1
        assert f"All rows of outbox_event will be encrypted with the key {NEW.id}. Continue?" in asked.output
        assert CARD in texts(box)[0][0]
        done = command("reencrypt", "--yes")
        assert (done.exit_code, done.stdout) == (0, f"1 row of 1 was encrypted with the key {NEW.id}.\n")
        assert CARD not in texts(box)[0][0]
        assert command("reencrypt", "-y").stdout == f"0 rows of 1 were encrypted with the key {NEW.id}.\n"

    def test_a_dry_run_only_counts(self, box: Outbox, command: Command) -> None:
        with_keys(box).emit("Order", 1, "order.placed", {"card": CARD})
        assert command("reencrypt", "--dry-run").stdout == f"1 row of 1 would be encrypted with the key {NEW.id}.\n"
        assert CARD in texts(box)[0][0]

    def test_decrypts_only_if_it_is_told_to(self, box: Outbox, command: Command) -> None:
        emit_one(payload={"card": CARD})
        assert command("reencrypt", "--decrypt", "-y").stdout == "1 row of 1 was stored in plain text.\n"
        assert CARD in texts(box)[0][0]

    def test_reports_what_is_left(self, box: Outbox, command: Command) -> None:
        with_keys(box, OTHER.text).emit("Order", 1, "order.placed", {"n": 1})
        damage(stored(with_keys(box, OLD.text).emit("Order", 2, "order.placed", {"n": 2})))
        done = command("reencrypt", "--yes")
        assert done.exit_code == 1
        assert f"1 row left as they are: encrypted with the key {OTHER.id}" in done.stderr
        assert "1 row left as they are: they can't be decrypted" in done.stderr
        told = json.loads(command("reencrypt", "-y", "--json").stdout)
        assert (told["changed"], told["missing_keys"], told["damaged"]) == (0, {OTHER.id: 1}, 1)

    def test_refuses_without_keys(self, without_keys: Command) -> None:
        with pytest.raises(outbox.SettingsError, match="OUTBOX_ENCRYPTION_KEYS is not set"):
            without_keys("reencrypt", "-y")
