"""Destinations that are renamed, rolled back, retired and brought back: no event loses one on the way."""

import sys
import threading
from typing import Any

import pytest

import outbox
from outbox.admin import queries
from outbox.core import Outbox
from outbox.destinations.registry import Registry
from outbox.destinations.retirement import retire, retire_absent
from outbox.operations.filters import Filter
from outbox.storage.models import DELIVERED, PENDING
from outbox.telemetry.audit import Operator
from tests.conftest import Configure
from tests.operations.changing import change_all, replay_to
from tests.support.outbox_parts import waiting_for_handlers
from tests.support.recorded_destinations import let_records_age, recorded, refresh
from tests.support.table import change, emit, emit_one, let_pass, statuses, stored

dispatch: Any = sys.modules["outbox.delivery.dispatch"]


def down(_: outbox.Event) -> None:
    raise outbox.Unavailable("down")


class Fleet:
    """Workers on one table, whose handlers add their names to one list."""

    def __init__(self, box: Outbox) -> None:
        self._box = box
        self.calls: list[str] = []

    def worker(self, *out_of_order: str, **destinations: str | tuple[str, str | list[str]]) -> Outbox:
        """Return a worker with destinations by name: their patterns, and which destinations they replace."""
        registry = Registry()
        for name, chosen in destinations.items():
            patterns, replaces = chosen if isinstance(chosen, tuple) else (chosen, ())
            registry.handler(*patterns.split(), name=name, replaces=replaces)(
                lambda _, name=name: self.calls.append(name)
            )
        for name in out_of_order:
            registry.handler("order.*", name=name)(down)
        made = waiting_for_handlers(Outbox(self._box.settings, database=self._box.database, registry=registry))
        made.is_worker = True
        return made

    def started(self, *out_of_order: str, **destinations: str | tuple[str, str | list[str]]) -> Outbox:
        made = self.worker(*out_of_order, **destinations)
        made.drain()
        return made


@pytest.fixture
def fleet(box: Outbox) -> Fleet:
    return Fleet(box)


class TestARollback:
    def test_brings_the_old_name_back_once_the_new_one_has_no_worker(self, box: Outbox, fleet: Fleet) -> None:
        fleet.started(mailer="order.*", log="*")
        fleet.started(v2=("order.*", "mailer"), log="*")
        old = fleet.started(mailer="order.*", log="*")  # while the new one still counts as running
        let_records_age(box, minutes=4)
        refresh(old)
        retire(box.dialect, "v2", retired_by=Operator("ada"))
        emit_one()
        old.drain()
        assert (sorted(fleet.calls), statuses()) == (["log", "mailer"], {DELIVERED: 1})

    def test_by_a_rename_back_leaves_one_of_the_two(self, fleet: Fleet) -> None:
        fleet.started(a="order.*")
        fleet.started(b=("order.*", "a"))
        third = fleet.started(a=("order.*", "b"))
        emit_one()
        third.drain()
        assert (fleet.calls, statuses()) == (["a"], {DELIVERED: 1})

    def test_and_forward_again_delivers_nothing_twice(self, box: Outbox, fleet: Fleet) -> None:
        fleet.started(mailer="order.*")
        fleet.started(v2=("order.*", "mailer"))
        let_records_age(box, minutes=4)
        old = fleet.started(mailer="order.*")
        emit(3)
        old.drain()
        let_records_age(box, minutes=4)
        let_pass(minutes=2)
        fleet.started(v2=("order.*", "mailer"))
        assert (fleet.calls, statuses()) == (["mailer"] * 3, {DELIVERED: 3})


class TestAChainOfRenames:
    def test_hands_over_to_its_end(self, fleet: Fleet) -> None:
        first = fleet.worker("bus", a="order.*")
        emit_one()
        first.drain()
        fleet.started(b=("other", "a"))
        let_pass(hours=1)
        fleet.started(c=("order.*", "b"), bus="order.*")
        assert (fleet.calls, statuses()) == (["a", "bus"], {DELIVERED: 1})

    def test_does_not_lose_a_replay_that_is_on_its_way(self, box: Outbox, fleet: Fleet) -> None:
        fleet.worker(a="order.*")
        emit_one()
        fleet.started(a="order.*")
        assert change_all(box, replay_to(box, "a"), Filter()) == 1
        fleet.worker(b=("order.*", "a")).recorder.keep_current()
        fleet.started(c=("order.*", "b"))
        assert fleet.calls == ["a", "c"]

    def test_that_merges_two_makes_up_for_the_one_that_had_not_ended(self, fleet: Fleet) -> None:
        old = fleet.worker("b", a="order.*")
        emit_one()
        old.drain()
        let_pass(hours=1)
        fleet.started(c=("order.*", ["a", "b"]))
        assert (fleet.calls, statuses()) == (["a", "c"], {DELIVERED: 1})

    def test_of_two_that_have_replaced_each_other_ends(self, box: Outbox, fleet: Fleet) -> None:
        fleet.started(a="order.*")
        box.database.execute_sql("UPDATE outbox_destination SET retired_at = seen_at, replaced_by = 'b'")
        fleet.worker(b="order.*").recorder.keep_current()
        box.database.execute_sql(
            "UPDATE outbox_destination SET retired_at = seen_at, replaced_by = 'a' WHERE name = 'b'"
        )
        assert fleet.worker(log="*").recorded_destinations.read().successor_of("a") in ("a", "b")


class TestWhatWasWrittenBeforeTheTable:
    def test_is_handed_over_by_replaces_although_the_name_was_never_recorded(self, fleet: Fleet) -> None:
        had_it, open_for_it = emit(2)
        change(had_it, progress={"mailer": {"state": "delivered", "attempts": 1}, "bus": {"state": "waiting"}})
        change(open_for_it, progress={"mailer": {"state": "waiting"}, "bus": {"state": "delivered", "attempts": 1}})
        fleet.started(v2=("order.*", "mailer"), bus="order.*")
        assert (sorted(fleet.calls), statuses()) == (["bus", "v2"], {DELIVERED: 2})

    def test_can_be_retired_by_force(self, box: Outbox, fleet: Fleet) -> None:
        event = emit_one()
        change(event, progress={"gone": {"state": "waiting"}, "log": {"state": "delivered", "attempts": 1}})
        worker = fleet.started(log="*")
        assert statuses() == {PENDING: 1}
        with pytest.raises(outbox.RegistrationError, match="--force"):
            retire(box.dialect, "gone", retired_by=Operator("ada"))
        retire(box.dialect, "gone", retired_by=Operator("ada"), force=True)
        let_pass(hours=2)
        worker.drain()
        assert statuses() == {DELIVERED: 1}


class TestARetiredName:
    def test_that_is_back_gets_what_still_waits_for_another(self, box: Outbox, fleet: Fleet) -> None:
        fleet.started(crm="*")
        poor = fleet.worker("bus")
        event = emit_one()
        poor.drain()
        retire(box.dialect, "crm", retired_by=Operator("ada"), force=True)
        let_pass(hours=1)
        poor.drain()
        let_pass(hours=2)
        fleet.started(crm="*", bus="*")
        assert sorted(fleet.calls) == ["bus", "crm"]
        assert queries.delivered_to(box.dialect, stored(event)) == ("bus", "crm")

    def test_stays_away_while_its_worker_goes_on_if_an_operator_has_retired_it(self, box: Outbox, fleet: Fleet) -> None:
        crm = fleet.started(crm="*")
        retire(box.dialect, "crm", retired_by=Operator("ada"), force=True)
        crm.registry.handler("later", name="later")(lambda _: None)  # registering more is no start
        crm.drain()
        refresh(crm)
        assert recorded(box)["crm"].retired

    def test_comes_back_with_a_worker_that_was_only_cut_off(self, configure: Configure) -> None:
        box = configure(max_age_hours=2, cleanup_minutes=10)
        fleet = Fleet(box)
        crm, mailer = fleet.started(crm="*"), fleet.started(mailer="*")
        for _ in range(12):
            let_records_age(box, minutes=12)
            refresh(mailer)
            retire_absent(box.dialect, box.settings)
        assert recorded(box)["crm"].retired
        refresh(crm)
        assert not recorded(box)["crm"].retired

    def test_that_a_declaration_has_retired_comes_back_when_the_last_release_that_declares_it_is_gone(
        self, box: Outbox, fleet: Fleet
    ) -> None:
        declaring = fleet.worker(log="*")
        declaring.registry.retire("crm")
        having = fleet.started(crm="*", log="*")
        declaring.drain()
        assert recorded(box)["crm"].retired
        refresh(having)
        assert not recorded(box)["crm"].retired


class TestADestinationThatWantsLess:
    def test_ends_what_was_open_for_a_type_that_it_no_longer_wants(self, box: Outbox, fleet: Fleet) -> None:
        fleet.worker("crm").drain()
        event = emit_one("order.paid")
        fleet.worker("crm").drain()
        let_records_age(box, minutes=11)
        let_pass(hours=2)
        fleet.started(crm="order.placed", log="*")
        assert (fleet.calls, stored(event).status) == (["log"], DELIVERED)


def test_absence_costs_no_age_although_the_destination_could_not_be_reached_before(fleet: Fleet) -> None:
    crm, poor = fleet.worker("crm"), fleet.worker(log="*")
    crm.drain()
    event = emit_one()
    crm.drain()
    for _ in range(80):
        let_pass(hours=1)
        poor.drain()
    let_pass(minutes=2)
    crm.drain()
    assert stored(event).status == PENDING


def test_threads_that_read_the_table_meanwhile_change_no_plan(
    fleet: Fleet, box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor is recorded, and another thread reads that, between a batch's lookup and its plan."""
    old = fleet.worker("mailer", log="*")
    event = emit_one()
    old.drain()
    let_pass(hours=1)
    plan = dispatch.plan

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.setattr(dispatch, "plan", plan)
        fleet.worker(v2=("order.*", "mailer")).recorder.keep_current()
        reader = threading.Thread(target=old.recorded_destinations.read)
        reader.start()
        reader.join()
        return plan(*arguments)

    monkeypatch.setattr(dispatch, "plan", interrupted)
    old.drain()
    assert stored(event).status == PENDING
