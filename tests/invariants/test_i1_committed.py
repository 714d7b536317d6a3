"""Delivered ⇒ committed: nothing of a rolled-back transaction or savepoint ever leaves."""

from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outbox
from outbox.core import Outbox
from tests.conftest import Configure, Note

# A program: emit, or a block of programs that is committed or rolled back.
EMIT = "emit"
PROGRAMS = st.recursive(
    st.just(EMIT), lambda inner: st.tuples(st.booleans(), st.lists(inner, max_size=4)), max_leaves=12
)

numbers = count()


class BlockFailedError(Exception):
    """Raised to roll a block back."""


def fail_unless(commits: bool) -> None:
    if not commits:
        raise BlockFailedError


def run(box: Outbox, program: Any) -> list[str]:
    """Run the program; return the events that have to be delivered if all enclosing blocks commit."""
    if program == EMIT:
        number = next(numbers)
        Note.create(text=str(number))
        outbox.emit("Note", number, "note.created")
        return [str(number)]
    commits, programs = program
    expected: list[str] = []
    try:
        with box.database.atomic():
            for each in programs:
                expected += run(box, each)
            fail_unless(commits)
    except BlockFailedError:
        return []
    return expected


def pick_up(box: Outbox) -> None:
    while box.process_pending_events()["processed"]:
        pass


@pytest.mark.parametrize("dispatch", ["off", "inline"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=PROGRAMS)
def test_exactly_the_committed_events_are_delivered(configure: Configure, dispatch: str, program: Any) -> None:
    box = configure(dispatch=dispatch)
    box.registry.clear()
    delivered: list[str] = []
    outbox.handler("note.created", name="taker")(lambda event: delivered.append(event.aggregate_id))
    expected = run(box, program)
    pick_up(box)
    assert sorted(delivered) == sorted(expected)
    assert {note.text for note in Note.select()} >= set(delivered)


def test_nothing_is_claimed_before_the_commit(box: Outbox, url: str) -> None:
    rival = Outbox(outbox.Settings(database_url=url, dispatch="off"))
    with box.database.atomic():
        outbox.emit("Note", 1, "note.created")
        if rival.dialect.name == "postgres":  # SQLite has one writer: a claim waits for the commit
            assert rival.process_pending_events() == {"processed": 0, "remaining": 0}
    assert rival.process_pending_events() == {"processed": 1, "remaining": 0}
    rival.database.close_all()  # type: ignore[attr-defined]
