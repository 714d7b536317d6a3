"""The metrics of order per key: what is blocked, for how long, and what was held back."""

from outbox.core import Outbox
from outbox.storage.models import Waiting
from tests.support.blocked_keys import Crm, block, run
from tests.support.metrics import value
from tests.support.table import LONG_AGO


def test_without_blocked_keys_all_are_0(box: Outbox) -> None:
    names = ("outbox_blocked_keys", "outbox_waiting_events", "outbox_oldest_blocked_key_seconds")
    assert [value(box, name) for name in (*names, "outbox_held_back_total")] == [0, 0, 0, 0]


def test_keys_are_counted_at_each_destination_and_events_once(box: Outbox) -> None:
    crm, mail = Crm(), Crm("mail")
    mail.rejected = {"a-0"}
    block(box, crm, key="a", followers=3)
    block(box, crm, key="b")
    assert value(box, "outbox_blocked_keys") == 3
    assert value(box, "outbox_waiting_events") == 5


def test_the_age_is_that_of_the_longest_wait(box: Outbox) -> None:
    crm = Crm()
    block(box, crm)
    assert 0 <= value(box, "outbox_oldest_blocked_key_seconds") < 60
    Waiting.update(since=LONG_AGO).execute(box.database)
    assert value(box, "outbox_oldest_blocked_key_seconds") > 3600


def test_events_that_wait_behind_others_are_pending_and_neither_due_nor_old(box: Outbox) -> None:
    block(box, Crm())
    assert value(box, "outbox_pending_events") == 2
    assert [value(box, f"outbox_{name}") for name in ("due_events", "oldest_due_seconds")] == [0, 0]
    assert value(box, "outbox_oldest_pending_seconds") == 0


def test_events_that_were_held_back_are_counted(box: Outbox) -> None:
    crm = Crm()
    block(box, crm, followers=3)
    run(box)
    box.reporter.report_now()
    assert value(box, "outbox_held_back_total") == 3
