"""What operators see of blocked keys, and how they let them go on."""

import json
from typing import Any

import pytest

from outbox.core import Outbox
from outbox.storage.models import DELIVERED, FAILED, PENDING
from outbox.telemetry import audit
from tests.cli.conftest import Command
from tests.support.blocked_keys import Crm, block, keyed, run
from tests.support.table import emit, stored


@pytest.fixture
def crm(box: Outbox) -> Crm:
    return Crm()


def columns(line: str) -> list[str]:
    return [each for each in line.split("  ") if each.strip()]


class TestKeys:
    def test_lists_where_a_key_is_blocked_and_behind_which_event(self, box: Outbox, crm: Crm, command: Command) -> None:
        head, *_ = block(box, crm, followers=3)
        result = command("keys")
        lines = result.stdout.splitlines()
        assert lines[0].split() == ["KEY", "DESTINATION", "WAITING", "FOR", "BEHIND", "TYPE", "STATE", "ERROR"]
        key, destination, waiting, _, behind, event_type, state, error = map(str.strip, columns(lines[1]))
        assert (key, destination, waiting, behind) == ("k", "crm", "3", str(head.id))
        assert (event_type, state, error) == ("order.placed", "failed", "crm: Reject: no such customer")
        assert "outbox skip ID" in result.stderr

    def test_without_a_failed_event_there_is_nothing_to_skip(self, box: Outbox, crm: Crm, command: Command) -> None:
        block(box, crm, failed=False)
        result = command("keys")
        assert "next attempt in" in result.stdout
        assert "outbox skip" not in result.output

    def test_one_key_and_a_limit(self, box: Outbox, crm: Crm, command: Command) -> None:
        for key in ("a", "b", "c"):
            block(box, crm, key=key)
        assert [columns(line)[0] for line in command("keys", "b").stdout.splitlines()[1:]] == ["b"]
        limited = command("keys", "--limit", "2")
        assert len(limited.stdout.splitlines()) == 3
        assert "3 keys in all. To list more: --limit" in limited.stderr
        assert command("keys", "nobody").output == "No event of this key waits behind another.\n"

    def test_without_blocked_keys_it_says_so(self, box: Outbox, command: Command) -> None:
        assert command("keys").output == "No key is blocked.\n"
        assert json.loads(command("keys", "--json").stdout)["keys"] == []

    def test_as_json(self, box: Outbox, crm: Crm, command: Command) -> None:
        head, *_ = block(box, crm)
        found = json.loads(command("keys", "--json").stdout)
        (key,) = found["keys"]
        assert found["count"] == {"number": 1, "at_least": False}
        assert (key["key"], key["destination"], key["waiting"]["number"]) == ("k", "crm", 2)
        behind = key["behind"]
        assert (behind["id"], behind["status"], behind["next_attempt_at"]) == (str(head.id), "failed", None)


class TestSkip:
    def test_lets_the_later_events_go_on(self, box: Outbox, crm: Crm, command: Command) -> None:
        head, second, third = block(box, crm)
        assert command("skip", "-y", str(head.id)).output.endswith("1 event was skipped.\n")
        run(box)
        assert crm.got == ["k-1", "k-2"]
        assert [stored(each).status for each in (head, second, third)] == [FAILED, DELIVERED, DELIVERED]
        (entry,) = audit.latest(box.dialect)
        assert (entry.action, entry.affected) == ("skip", 1)

    def test_says_what_it_does_to_the_order_before_it_does_it(self, box: Outbox, crm: Crm, command: Command) -> None:
        head, second, _ = block(box, crm)
        result = command("skip", str(head.id), input="n\n")
        assert "Later events of its ordering key no longer wait behind it." in result.output
        assert stored(second).status == PENDING

    def test_by_key(self, box: Outbox, crm: Crm, command: Command) -> None:
        block(box, crm, key="a")
        block(box, crm, key="b")
        command("skip", "-y", "--ordering-key", "a")
        run(box)
        assert crm.got == ["a-1", "a-2"]

    def test_only_events_that_have_failed_and_hold_back_others(self, box: Outbox, crm: Crm, command: Command) -> None:
        crm.rejected.add("0")
        emit(1)  # without a key
        run(box)
        crm.refused.add("1")
        keyed("1", "2")
        run(box)
        assert command("skip", "--all", "--dry-run").output == "0 events would be skipped.\n"


class TestOtherCommands:
    def test_show_says_what_the_event_waits_behind(self, box: Outbox, crm: Crm, command: Command) -> None:
        head, second, _ = block(box, crm)
        shown = command("show", str(second.id)).output
        assert f"waits behind the event `{head.id}` (order.placed, failed) at crm" in shown
        assert f"outbox skip {head.id}" in shown
        assert "2 later events at crm of the same ordering key wait" in command("show", str(head.id)).output

    def test_show_as_json_has_no_due_time_for_an_event_that_waits(
        self, box: Outbox, crm: Crm, command: Command
    ) -> None:
        head, second, _ = block(box, crm)
        shown = json.loads(command("show", str(second.id), "--json").stdout)
        assert shown["next_attempt_at"] is None
        (wait,) = shown["waits_behind"]
        assert (wait["destination"], wait["behind"]) == ("crm", str(head.id))

    @pytest.mark.parametrize(
        "words", [["list"], ["list", "--json"], ["status"], ["status", "--json"], ["keys"], ["keys", "--json"]]
    )
    def test_none_prints_the_year_9000(self, box: Outbox, crm: Crm, command: Command, words: list[str]) -> None:
        """Nor does show, of any of them."""
        events = block(box, crm)
        assert "9000-" not in command(*words).output
        for event in events:
            assert "9000-" not in command("show", str(event.id)).output

    def test_status_names_the_longest_blocked_key(self, box: Outbox, crm: Crm, command: Command) -> None:
        block(box, crm)
        printed = command("status").output
        assert "blocked keys 1, 2 events wait; the longest for" in printed
        assert "k at crm, behind an event: failed (see outbox keys)" in printed
        assert "oldest unfinished" not in printed
        data: dict[str, Any] = json.loads(command("status", "--json").stdout)
        assert data["blocked_keys"]["count"]["number"] == 1

    def test_list_by_ordering_key(self, box: Outbox, crm: Crm, command: Command) -> None:
        keyed("1", "2", key="a")
        keyed("3", key="b")
        found = json.loads(command("list", "--json", "--ordering-key", "a").stdout)["events"]
        assert [each["aggregate_id"] for each in found] == ["2", "1"]
