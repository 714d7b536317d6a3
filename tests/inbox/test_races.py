"""Of many calls with the same message at the same time, one has the effect; the others wait for its outcome."""

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event as Gate
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.inbox.once_decorator import SKIPPED
from tests.conftest import Note
from tests.inbox.effects import inbox_rows, note_taker, notes
from tests.support.crowd import at_once, processes_at_once
from tests.support.program import ROOT, environment
from tests.support.table import becomes_true, on_postgres, passes, sessions_waiting

MESSAGE = {"id": "m-1"}
CROWD = 20


def test_twenty_threads_with_one_message_have_one_effect(box: Outbox) -> None:
    take_note = note_taker()
    answers = at_once(box.database, [lambda: take_note(MESSAGE)] * CROWD)
    assert Counter(map(str, answers)) == {"noted": 1, "outbox.inbox.SKIPPED": CROWD - 1}
    assert (notes(), inbox_rows()) == (["reader"], [("m-1", "reader")])
    assert box.counters["skipped"] == CROWD - 1


def test_threads_with_different_messages_do_not_block_each_other(box: Outbox) -> None:
    take_note = note_taker()
    answers = at_once(box.database, [partial(take_note, {"id": number % 10}) for number in range(CROWD)])
    assert Counter(map(str, answers)) == {"noted": 10, "outbox.inbox.SKIPPED": 10}
    assert notes() == ["reader"] * 10


def test_when_the_first_calls_fail_another_has_the_effect(box: Outbox) -> None:
    """However many of them fail, one of the others gets its turn."""
    tries = iter(range(CROWD))

    @outbox.inbox.once("reader")
    def read(message: dict[str, Any]) -> str:
        Note.create(text="reader")
        if next(tries) < 5:  # they come one after the other: each waits for the one before
            raise ValueError("not me")
        return "noted"

    answers = at_once(box.database, [lambda: read(MESSAGE)] * CROWD)
    expected = {"not me": 5, "noted": 1, "outbox.inbox.SKIPPED": CROWD - 6}
    assert Counter(map(str, answers)) == expected
    assert (notes(), inbox_rows()) == (["reader"], [("m-1", "reader")])


PROCESSING = """
with outbox.inbox.claim("m-1", "reader") as first:
    if first:
        outbox.current().database.execute_sql("INSERT INTO note (text) VALUES ('reader')")
print(first)
"""


@on_postgres
def test_eight_processes_with_one_message_have_one_effect(box: Outbox, postgres_url: str) -> None:
    said = processes_at_once(8, PROCESSING, database_url=postgres_url, dispatch="off")
    assert Counter(said) == {"True\n": 1, "False\n": 7}
    assert (notes(), inbox_rows()) == (["reader"], [("m-1", "reader")])


@on_postgres
class TestTheSecondCall:
    @pytest.mark.parametrize("fails", [False, True], ids=["commits", "rolls back"])
    def test_waits_until_the_first(self, box: Outbox, postgres_url: str, *, fails: bool) -> None:
        entered, leave = Gate(), Gate()

        @outbox.inbox.once("reader")
        def read(message: dict[str, Any], name: str) -> str:
            Note.create(text=name)
            if name == "first":
                entered.set()
                passes(leave)
                if fails:
                    raise ValueError("rolled back")
            return "noted"

        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(read, MESSAGE, "first")
            passes(entered)
            second = threads.submit(read, MESSAGE, "second")
            becomes_true(lambda: sessions_waiting(postgres_url) == 1)
            assert not second.done()
            leave.set()
            outcome = "noted" if first.exception() is None else "failed"
            assert (outcome, second.result()) == (("failed", "noted") if fails else ("noted", SKIPPED))
        assert notes() == (["second"] if fails else ["first"])
        assert inbox_rows() == [("m-1", "reader")]

    def test_does_not_wait_for_another_message_or_another_handler(self, box: Outbox) -> None:
        take_note = note_taker()
        with box.database.atomic():
            take_note(MESSAGE)
            others = [lambda: take_note({"id": "m-2"}), lambda: note_taker("another")(MESSAGE)]
            assert at_once(box.database, others) == ["noted", "noted"]


DYING = """
import sys, outbox
with outbox.inbox.claim("m-1", "reader") as first:
    outbox.current().database.execute_sql("INSERT INTO note (text) VALUES ('reader')")
    print(first, flush=True)
    sys.stdin.readline()
"""


def test_a_process_that_is_killed_before_its_commit_leaves_neither(box: Outbox, url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DYING],
        env=environment(database_url=url, dispatch="off"),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        process.kill()
    take_note = note_taker()
    assert [take_note(MESSAGE), take_note(MESSAGE)] == ["noted", SKIPPED]
    assert (notes(), inbox_rows()) == (["reader"], [("m-1", "reader")])
