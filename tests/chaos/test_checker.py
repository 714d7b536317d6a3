"""The checker finds what it is there for: accounts in which one thing was falsified."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos import faults
from tests.chaos.account import (
    COMMITTED,
    ROLLED_BACK,
    UNKNOWN,
    Account,
    Delivery,
    Emitted,
    Error,
    Fault,
    Row,
    Transaction,
    Trespass,
    transactions,
)
from tests.chaos.checker import check, proof
from tests.chaos.destinations import ACTOR, EVERYWHERE, HANDLED, HANDLER, JOB, POSTED, STREAM, STREAMED, WEBHOOK
from tests.chaos.run import Verdict

# When what happened, in the account that is right.
DEATH = Fault(faults.KILLED, 40, 41, {"events in its hands": 3})
PAUSE = Fault(faults.PAUSED, 45, 46, {"outcomes fenced": 1})
LOST = Fault(faults.ANSWERS_LOST, 50, 51, {"answers lost": 1})
AWAY = Fault(faults.POSTGRES_RESTARTED, 55, 56)
CUT = Fault(faults.COMMIT_CUT_AFTER, 60, 61, {"commits cut": 2})
HANGING = Fault(faults.RECEIVER_HANGS, 100, 200, {"events in the air": 1})
NO_REDIS = Fault(faults.REDIS_KILLED, 100, 200)


def event(id: str, kind: str = HANDLED, **fields: Any) -> Emitted:
    return Emitted(id, kind, f"payload {id}", **fields)


def transaction(name: str, fate: str, *events: Emitted, at: float = 10) -> Transaction:
    return Transaction(name, fate, events, at, None if fate == UNKNOWN else at + 1)


def delivery(id: str, destination: str = HANDLER, at: float = 20) -> Delivery:
    return Delivery(id, destination, f"body {id}", f"payload {id}", at)


def row(id: str, status: str = "delivered", error: str | None = None) -> Row:
    return Row(id, status, f"payload {id}", error)


def right() -> Account:
    """Something of everything, and nothing wrong with it."""
    meanwhile = [f"meanwhile {number}" for number in range(faults.ENOUGH)]
    return Account(
        transactions=[
            transaction("good", COMMITTED, event("plain"), event("undone", kept=False), event("wide", EVERYWHERE)),
            transaction("bad", ROLLED_BACK, event("never")),
            transaction("cut and done", UNKNOWN, event("posted", POSTED), at=60),
            transaction("cut and gone", UNKNOWN, event("gone"), at=60),
            transaction("doomed", COMMITTED, event("doomed", doomed=True)),
            transaction("first", COMMITTED, event("first", EVERYWHERE, ordering_key="k", seq=1), at=62),
            transaction("second", COMMITTED, event("second", EVERYWHERE, ordering_key="k", seq=2), at=64),
            transaction("jobs", COMMITTED, event("job", JOB), event("replaced", JOB, key="k")),
            transaction("debounced", COMMITTED, event("debounced", JOB, key="k")),
            *(
                transaction(f"during {id}", COMMITTED, event(id), event(f"{id} too", STREAMED), at=120)
                for id in meanwhile
            ),
        ],
        deliveries=[
            delivery("plain"),
            delivery("plain", at=42),  # again, after the death
            delivery("wide", HANDLER),
            delivery("wide", WEBHOOK, at=49),
            delivery("wide", WEBHOOK, at=52),  # again, after its answer was lost
            delivery("wide", STREAM),
            delivery("posted", WEBHOOK, at=70),
            *(delivery("first", to, at=70) for to in (HANDLER, WEBHOOK, STREAM)),
            *(delivery("second", to, at=71) for to in (HANDLER, WEBHOOK, STREAM)),
            delivery("job", ACTOR, at=42),
            delivery("job", ACTOR, at=43),  # again: both have waited since the death
            delivery("debounced", ACTOR),
            *(delivery(id, HANDLER, at=130) for id in meanwhile),
            *(delivery(f"{id} too", STREAM, at=130) for id in meanwhile),
        ],
        faults=[DEATH, PAUSE, LOST, AWAY, CUT, HANGING, NO_REDIS],
        errors=[Error("OperationalError", "the connection is closed", at=62, good_at=59)],
        rows=[
            row("plain"),
            row("wide"),
            row("posted"),
            row("first"),
            row("second"),
            row("job"),
            row("debounced"),
            row("doomed", "failed", "ValueError: this one always fails"),
            *(row(id) for id in meanwhile),
            *(row(f"{id} too") for id in meanwhile),
        ],
        notes={
            "good",
            "cut and done",
            "doomed",
            "first",
            "second",
            "jobs",
            "debounced",
            *(f"during {id}" for id in meanwhile),
        },
        fenced=1,
        changes={"plain": [(15.0, "sending by worker-1")]},
        runs=[10.0, 11.0, 12.0],
        ran=[10.0, 11.0, 11.0, 12.0],
        effects=Counter(["job", "debounced"]),
        retried={"first"},
    )


def test_an_account_that_is_right_passes() -> None:
    assert check(right()) == []
    assert proof(right()) == []


def without(items: list[Row], id: str) -> list[Row]:
    return [item for item in items if item.id != id]


def changed(items: list[Row], id: str, status: str, error: str | None = None) -> list[Row]:
    return [replace(item, status=status, error=error) if item.id == id else item for item in items]


def later(deliveries: list[Delivery], id: str, to: str) -> list[Delivery]:
    """The same, but the event gets there after all others."""
    return [replace(each, at=90) if (each.id, each.destination) == (id, to) else each for each in deliveries]


Falsify = Callable[[Account], Account]


@pytest.mark.parametrize(
    ("invariant", "id", "falsify"),
    [
        ("I1", "never", lambda a: replace(a, deliveries=[*a.deliveries, delivery("never")])),
        ("I1", "never", lambda a: replace(a, rows=[*a.rows, row("never")])),
        ("I1", "undone", lambda a: replace(a, deliveries=[*a.deliveries, delivery("undone")])),
        ("I1", "gone", lambda a: replace(a, deliveries=[*a.deliveries, delivery("gone")])),
        ("I1", "stray", lambda a: replace(a, deliveries=[*a.deliveries, delivery("stray")])),
        ("I2", "plain", lambda a: replace(a, rows=without(a.rows, "plain"))),
        ("I2", "posted", lambda a: replace(a, rows=without(a.rows, "posted"))),
        ("I2", "plain", lambda a: replace(a, rows=changed(a.rows, "plain", "pending"))),
        ("I2", "plain", lambda a: replace(a, rows=changed(a.rows, "plain", "sending"))),
        ("I2", "plain", lambda a: replace(a, rows=changed(a.rows, "plain", "failed", "no reason"))),
        ("I2", "doomed", lambda a: replace(a, rows=changed(a.rows, "doomed", "failed"))),
        ("I2", "doomed", lambda a: replace(a, rows=changed(a.rows, "doomed", "delivered"))),
        ("I8", "wide", lambda a: replace(a, deliveries=[d for d in a.deliveries if d.destination != WEBHOOK])),
        ("I2", "plain", lambda a: replace(a, rows=[replace(r, payload="other") for r in a.rows])),
        ("I2", "plain", lambda a: replace(a, notes=a.notes - {"good"})),
        ("I8", "job", lambda a: replace(a, deliveries=[d for d in a.deliveries if d.id != "job"])),
        ("I2", "job", lambda a: replace(a, rows=without(a.rows, "job"))),
        ("I4", "replaced", lambda a: replace(a, deliveries=[*a.deliveries, delivery("replaced", ACTOR)])),
        ("I4", "debounced", lambda a: replace(a, deliveries=[*a.deliveries, delivery("debounced", ACTOR, at=21)])),
        ("inbox", "job", lambda a: replace(a, effects=a.effects + Counter(["job"]))),
        ("inbox", "job", lambda a: replace(a, effects=Counter(["debounced"]))),
        ("inbox", "never", lambda a: replace(a, effects=a.effects + Counter(["never"]))),
        ("I3", "plain", lambda a: replace(a, trespasses=[Trespass("plain", "changed after its end")])),
        ("I4", "plain", lambda a: replace(a, deliveries=[*a.deliveries, delivery("plain", at=43)])),
        ("I4", "plain", lambda a: replace(a, faults=[f for f in a.faults if f is not DEATH])),
        ("I4", "wide", lambda a: replace(a, faults=[f for f in a.faults if f is not LOST])),
        ("I4", "plain", lambda a: replace(a, deliveries=[*a.deliveries, replace(delivery("plain"), body="other")])),
        ("I4", "posted", lambda a: replace(a, deliveries=[replace(d, payload="other") for d in a.deliveries])),
        ("I5", "first", lambda a: replace(a, deliveries=later(a.deliveries, "first", STREAM))),
        ("I5", "first", lambda a: replace(a, deliveries=[*later(a.deliveries, "first", HANDLER), delivery("second")])),
        ("I6", None, lambda a: replace(a, deliveries=[replace(d, at=d.at + 100) for d in a.deliveries])),
        ("I6", None, lambda a: replace(a, transactions=[replace(t, intended_at=10) for t in a.transactions])),
        ("I7", None, lambda a: replace(a, errors=[Error("OperationalError", "gone", at=30, good_at=29)])),
        ("I7", None, lambda a: replace(a, errors=[Error("ConnectionError", "Redis", at=62, good_at=59)])),
        ("I7", None, lambda a: replace(a, transactions=[replace(t, ended_at=10) for t in a.transactions])),
        ("I9", None, lambda a: replace(a, deliveries=[replace(d, at=d.at + 100) for d in a.deliveries])),
        ("I9", None, lambda a: replace(a, deliveries=[d for d in a.deliveries if d.at != 130])),
        ("periodic", None, lambda a: replace(a, runs=[*a.runs, 11.0])),
        ("periodic", None, lambda a: replace(a, runs=[10.0, 12.0])),
        ("periodic", None, lambda a: replace(a, ran=[10.0, 12.0])),
    ],
)
def test_it_finds_what_was_falsified(invariant: str, id: str | None, falsify: Falsify) -> None:
    found = {(violation.invariant, violation.id) for violation in check(falsify(right()))}
    assert (invariant, id) in found


@pytest.mark.parametrize(
    ("missing", "falsify"),
    [
        ("hit nothing", lambda a: replace(a, faults=[replace(f, hits={}) if f is DEATH else f for f in a.faults])),
        ("noticed", lambda a: replace(a, errors=[])),
        ("fenced", lambda a: replace(a, fenced=0)),
        ("lost answer", lambda a: replace(a, deliveries=[d for d in a.deliveries if d.at != 52])),
        ("a later one waited", lambda a: replace(a, retried=set())),
        ("a later one waited", lambda a: replace(a, transactions=[t for t in a.transactions if t.name != "second"])),
        ("taken over", lambda a: replace(a, deliveries=[d for d in a.deliveries if d.at != 42])),
        ("unknown", lambda a: replace(a, transactions=[t for t in a.transactions if t.fate != UNKNOWN])),
        ("rolled back", lambda a: replace(a, transactions=[t for t in a.transactions if t.fate != ROLLED_BACK])),
        ("committed", lambda a: replace(a, transactions=[])),
        ("periodic job", lambda a: replace(a, runs=[])),
        ("only fail", lambda a: replace(a, rows=without(a.rows, "doomed"))),
    ],
)
def test_a_run_that_shows_nothing_does_not_pass(missing: str, falsify: Falsify) -> None:
    account = falsify(right())
    assert any(missing in what for what in proof(account))
    assert not Verdict(7, account, [], proof(account), None).passed


def test_a_transaction_whose_emitter_was_killed_is_unknown() -> None:
    intended = {"what": "intended", "at": 1.0, "transaction": "a", "events": []}
    ended = {"what": "ended", "at": 2.0, "transaction": "b", "fate": COMMITTED}
    found = transactions([intended, intended | {"transaction": "b"}, ended])
    assert [(one.name, one.fate) for one in found] == [("a", UNKNOWN), ("b", COMMITTED)]


def test_a_failure_says_the_seed_the_invariant_and_the_history_of_the_event() -> None:
    account = right()
    account = replace(account, deliveries=[*account.deliveries, delivery("plain", at=43)])
    verdict = Verdict(7, account, check(account), [], None)
    assert not verdict.passed
    report = verdict.report()
    for part in (
        "--seed 7",
        "I4: the handler got it twice, without any fault in between: plain",
        "emitted in good as",
        "good is committed",
        "sending by worker-1",
        f"fault: {faults.KILLED}",
        "in the end: Row(id='plain', status='delivered'",
    ):
        assert part in report
    assert report.count("accepted by the handler") == 3
