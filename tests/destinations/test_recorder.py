"""Recording destinations in the database: kept current, narrowed, retired, and never by two at once."""

from functools import partial
from typing import Any

import peewee
import psycopg
import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations import recorded_destinations
from outbox.destinations.recorded_destinations import change_recorded, read_recorded
from outbox.destinations.retirement import retire, retire_absent
from outbox.errors import RegistrationError, SchemaError
from outbox.operations import audit
from tests.conftest import Configure
from tests.crowd import at_once
from tests.support.recorded_destinations import let_records_age, recorded
from tests.table import becomes_true, emit_one, on_postgres, other_worker, statements, statuses


def version(box: Outbox) -> int:
    with box.dialect.connection():
        return read_recorded(box.dialect)[0]


def refresh(worker: Outbox) -> None:
    """What a worker does every minute."""
    worker.recorder.record(starting=False)


class TestTheVersion:
    def test_changes_when_a_name_or_a_pattern_comes_and_else_stays(self, box: Outbox) -> None:
        before = version(box)
        other_worker(box, mailer="order.*")
        with_name = version(box)
        other_worker(box, mailer="order.*")
        other_worker(box, mailer="order.* user.*")
        with_pattern = version(box)
        other_worker(box, mailer="user.*")
        assert (with_name > before, with_pattern > with_name) == (True, True)
        assert version(box) == with_pattern

    def test_is_read_with_every_claim_and_the_table_only_when_it_has_changed(self, box: Outbox) -> None:
        outbox.handler("*", name="here")(lambda _: None)
        emit_one()
        box.process_pending_events()
        emit_one()
        with statements(box.database) as seen:
            box.process_pending_events()
        assert not [statement for statement in seen if "outbox_destination" in statement]
        other_worker(box, there="nothing")
        emit_one()
        with statements(box.database) as seen:
            box.process_pending_events()
        assert len([statement for statement in seen if "JOIN outbox_destination" in statement]) == 1

    def test_whose_row_is_gone_is_an_error_that_says_how_to_bring_it_back(self, box: Outbox) -> None:
        box.database.execute_sql("DELETE FROM outbox_control")
        emit_one()
        with pytest.raises(SchemaError, match="INSERT INTO outbox_control"):
            box.process_pending_events()
        assert statuses() == {"pending": 1}


class TestAWorker:
    def test_has_recorded_its_destinations_when_it_is_ready_and_has_claimed_nothing(self, box: Outbox) -> None:
        outbox.handler("order.*", name="mailer")(lambda _: None)
        emit_one()
        box.become_worker()
        assert recorded(box)["mailer"].alive
        assert statuses() == {"pending": 1}

    def test_that_starts_while_the_database_is_away_records_before_it_claims(
        self, box: Outbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise peewee.OperationalError("away")

        outbox.handler("order.*", name="mailer")(lambda _: None)
        with monkeypatch.context() as patch:
            patch.setattr(box.recorder, "record", fail)
            box.become_worker()
        assert "will be recorded before the first claim: away" in caplog.text
        assert recorded(box) == {}
        box.drain()
        assert recorded(box)["mailer"].alive

    def test_that_ends_is_absent_after_a_minute_not_after_three(self, box: Outbox) -> None:
        other_worker(box, crm="*").recorder.stop()
        assert recorded(box)["crm"].alive
        let_records_age(box, seconds=75)
        assert not recorded(box)["crm"].alive

    def test_that_ends_beside_another_that_has_the_same_is_not_missed(self, box: Outbox) -> None:
        stays = other_worker(box, crm="*")
        other_worker(box, crm="*").recorder.stop()
        let_records_age(box, seconds=60)
        refresh(stays)
        let_records_age(box, seconds=60)
        assert recorded(box)["crm"].alive


class TestPatterns:
    def test_of_workers_that_differ_count_together(self, box: Outbox) -> None:
        other_worker(box, mailer="order.*")
        other_worker(box, mailer="user.created")
        assert set(recorded(box)["mailer"].patterns) == {"order.*", "user.created"}

    def test_that_no_worker_has_any_more_go_after_ten_minutes(self, box: Outbox) -> None:
        other_worker(box, mailer="order.* user.*")
        narrower = other_worker(box, mailer="order.*")
        let_records_age(box, minutes=9)
        refresh(narrower)
        assert set(recorded(box)["mailer"].patterns) == {"order.*", "user.*"}
        before = version(box)
        let_records_age(box, minutes=2)
        refresh(narrower)
        assert set(recorded(box)["mailer"].patterns) == {"order.*"}
        assert version(box) > before

    def test_stay_when_no_worker_has_the_name(self, box: Outbox) -> None:
        other_worker(box, mailer="order.*")
        other = other_worker(box, crm="order.*")
        let_records_age(box, hours=1)
        refresh(other)
        assert set(recorded(box)["mailer"].patterns) == {"order.*"}


class TestAbsence:
    def test_is_logged_when_a_worker_starts(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        other_worker(box, crm="*")
        let_records_age(box, minutes=4)
        other_worker(box, mailer="*")
        assert "No running worker has the recorded destinations crm" in caplog.text

    def test_is_not_logged_for_what_a_running_worker_has(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        other_worker(box, crm="*")
        let_records_age(box, minutes=2)
        other_worker(box, mailer="*")
        assert "No running worker" not in caplog.text

    def test_for_the_maximum_age_retires_a_name(self, configure: Configure, caplog: pytest.LogCaptureFixture) -> None:
        box = configure(max_age_hours=10, cleanup_minutes=60)
        other_worker(box, crm="*")
        mailer = other_worker(box, mailer="*")
        retired: list[list[str]] = []
        for _ in range(12):
            let_records_age(box, hours=1)
            refresh(mailer)
            retired.append(retire_absent(box.dialect, box.settings))
        assert retired == [[]] * 10 + [["crm"], []]  # the first hour it may have been there
        assert recorded(box)["crm"].retired
        assert not recorded(box)["mailer"].retired
        assert "The destination crm was retired by OUTBOX_MAX_AGE_HOURS" in caplog.text
        assert [(entry.who, entry.action, entry.filters["destination"]) for entry in audit.latest(box.dialect)] == [
            ("OUTBOX_MAX_AGE_HOURS", "retire", "crm")
        ]

    def test_while_no_worker_runs_at_all_does_not_count(self, configure: Configure) -> None:
        """After a standstill of the whole fleet, the first worker must not retire what the others have."""
        box = configure(max_age_hours=10, cleanup_minutes=60)
        other_worker(box, crm="*")
        mailer = other_worker(box, mailer="*")
        retire_absent(box.dialect, box.settings)
        let_records_age(box, days=30)
        refresh(mailer)
        assert retire_absent(box.dialect, box.settings) == []
        assert not recorded(box)["crm"].retired

    def test_ends_when_a_worker_has_it_again(self, configure: Configure) -> None:
        box = configure(max_age_hours=2, cleanup_minutes=60)
        crm = other_worker(box, crm="*")
        for _ in range(5):
            let_records_age(box, hours=1)
            retire_absent(box.dialect, box.settings)
            refresh(crm)
        assert not recorded(box)["crm"].retired

    def test_is_looked_for_by_the_clean_up(self, configure: Configure) -> None:
        box = configure(max_age_hours=1, cleanup_minutes=6)
        other_worker(box, crm="*")
        mailer = other_worker(box, mailer="*")
        for _ in range(11):
            let_records_age(box, minutes=6)
            refresh(mailer)
            box.delete_old_records()
        assert recorded(box)["crm"].retired


class TestRetiring:
    def test_is_refused_while_a_running_worker_has_it(self, box: Outbox) -> None:
        other_worker(box, crm="*")
        with pytest.raises(RegistrationError, match="A running worker has the destination 'crm'"):
            retire(box.dialect, "crm", retired_by="ada")
        retire(box.dialect, "crm", retired_by="ada", force=True)
        assert recorded(box)["crm"].retired

    def test_is_written_down(self, box: Outbox) -> None:
        other_worker(box, crm="*")
        let_records_age(box, minutes=4)
        retire(box.dialect, "crm", retired_by="ada")
        (entry,) = audit.latest(box.dialect)
        assert (entry.who, entry.action, entry.filters) == (
            "ada",
            "retire",
            {"destination": "crm", "replaced_by": None},
        )

    def test_of_an_unknown_name_says_which_there_are(self, box: Outbox) -> None:
        with pytest.raises(RegistrationError, match=r"'typo' is recorded\. No worker has recorded any"):
            retire(box.dialect, "typo", retired_by="ada")
        other_worker(box, crm="*")
        with pytest.raises(RegistrationError, match=r"'typo' is recorded\. Recorded are: crm\."):
            retire(box.dialect, "typo", retired_by="ada")

    def test_is_not_undone_by_a_worker_that_goes_on(self, box: Outbox) -> None:
        worker = other_worker(box, crm="*")
        retire(box.dialect, "crm", retired_by="ada", force=True)
        refresh(worker)
        assert recorded(box)["crm"].retired

    def test_ends_for_the_patterns_that_a_worker_brings_back(self, box: Outbox) -> None:
        other_worker(box, crm="order.* user.*")
        retire(box.dialect, "crm", retired_by="ada", force=True)
        other_worker(box, crm="order.*")
        assert (recorded(box)["crm"].retired, set(recorded(box)["crm"].patterns)) == (False, {"order.*"})

    def test_is_told_to_a_process_that_has_it_registered(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        other_worker(box, crm="*")
        retire(box.dialect, "crm", retired_by="ada", force=True)
        outbox.handler("*", name="crm")(lambda _: None)
        outbox.handler("*", name="mailer")(lambda _: None)
        emit_one()
        box.process_pending_events()
        emit_one("order.paid")
        box.process_pending_events()
        assert caplog.text.count("The destination crm is registered in this process, and retired") == 1

    def test_of_a_replaced_name_ends_when_its_successor_is_gone(self, box: Outbox) -> None:
        """Going back to the release from before the rename."""
        other_worker(box, mailer="*")
        new = Outbox(box.settings, database=box.database)
        new.registry.handler("*", name="mailer-v2", replaces="mailer")(lambda _: None)
        new.become_worker()
        new.recorder.keep_current()
        assert recorded(box)["mailer"].replaced_by == "mailer-v2"
        let_records_age(box, minutes=4)
        other_worker(box, mailer="*")
        assert not recorded(box)["mailer"].retired


class TestRegistering:
    @pytest.mark.parametrize("replaces", ["same", ["", "x"], 7, ["x" * 256]])
    def test_refuses_what_can_not_be_replaced(self, box: Outbox, replaces: Any) -> None:
        with pytest.raises(RegistrationError):
            outbox.handler("*", name="same", replaces=replaces)(lambda _: None)

    def test_refuses_a_destination_that_does_not_say_which_events_it_wants(self, box: Outbox) -> None:
        class Old:
            name = "old"

            def wants(self, _: str) -> bool:
                return True

            def deliver(self, *_: object) -> list[Any]:
                return []

        with pytest.raises(RegistrationError, match=r"has no `events`"):
            outbox.add_destination(Old())  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["x" * 256, "a\0b", " "])
    def test_refuses_a_name_that_can_not_be_recorded(self, box: Outbox, name: str) -> None:
        with pytest.raises(RegistrationError):
            outbox.handler("*", name=name)(lambda _: None)

    @pytest.mark.parametrize("name", ["x" * 256, "", 7])
    def test_refuses_to_retire_what_can_not_be_a_name(self, box: Outbox, name: Any) -> None:
        with pytest.raises(RegistrationError):
            outbox.retire(name)


def test_workers_that_start_at_once_record_everything_and_wait_for_each_other(box: Outbox) -> None:
    patterns = [{f"own{n}": "*", "shared": f"type{n}"} for n in range(6)]
    at_once(box.database, [partial(other_worker, box, **each) for each in patterns])
    found = recorded(box)
    assert set(found) == {"shared", *(f"own{n}" for n in range(6))}
    assert len(found["shared"].patterns) == 6


@on_postgres
def test_a_process_that_is_frozen_while_it_records_does_not_keep_others_from_refreshing(
    box: Outbox, postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = other_worker(box, mailer="*")
    monkeypatch.setattr(recorded_destinations, "LOCK_SECONDS", 0.1)
    monkeypatch.setattr(worker.recorder, "_due_at", 0.0)
    caplog.set_level("DEBUG")
    with psycopg.connect(postgres_url) as frozen:
        frozen.execute("SELECT FROM outbox_control FOR UPDATE")
        worker.drain()
    assert "could not be recorded again" in caplog.text


@on_postgres
def test_a_process_that_is_frozen_while_it_changes_the_destinations_is_ended_by_the_server(
    box: Outbox, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_destinations, "LOCK_SECONDS", 0.2)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    with psycopg.connect(postgres_url, autocommit=True) as other:

        def freeze() -> None:
            with change_recorded(box.dialect):
                becomes_true(lambda: other.execute(sessions).fetchone() == (0,))

        with pytest.raises(peewee.PeeweeException):
            freeze()
    other_worker(box, mailer="*")
    assert recorded(box)["mailer"].alive
