"""Recording destinations in the database: kept current, narrowed, and never by two processes at the same time."""

from functools import partial

import peewee
import psycopg
import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.recorded_destinations import change_recorded, read_recorded
from outbox.destinations.recorder import Recorder
from outbox.errors import SchemaError
from tests.support.crowd import at_once
from tests.support.outbox_parts import replace_delivery
from tests.support.recorded_destinations import let_records_age, recorded, refresh
from tests.support.table import becomes_true, emit_one, on_postgres, other_worker, statements, statuses


def version(box: Outbox) -> int:
    with box.dialect.connection():
        return read_recorded(box.dialect)[0]


class TestTheVersion:
    def test_changes_only_when_a_name_or_a_pattern_is_new(self, box: Outbox) -> None:
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

    def test_without_its_row_is_an_error_that_says_how_to_restore_it(self, box: Outbox) -> None:
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
        assert "Could not record the destinations: away." in caplog.text
        assert recorded(box) == {}
        box.drain()
        assert recorded(box)["mailer"].alive

    def test_that_ends_is_absent_after_a_minute_not_after_three(self, box: Outbox) -> None:
        other_worker(box, crm="*").recorder.stop()
        assert recorded(box)["crm"].alive
        let_records_age(box, seconds=75)
        assert not recorded(box)["crm"].alive

    def test_that_ends_leaves_a_name_present_that_another_worker_has(self, box: Outbox) -> None:
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

    def test_that_no_worker_has_any_more_are_deleted_after_ten_minutes(self, box: Outbox) -> None:
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


class TestAnAbsentName:
    def test_is_logged_when_a_worker_starts(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        other_worker(box, crm="*")
        let_records_age(box, minutes=4)
        other_worker(box, mailer="*")
        assert "No running worker has the recorded destinations crm" in caplog.text
        assert "replaces=" in caplog.text

    def test_is_not_logged_for_what_a_running_worker_has(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        other_worker(box, crm="*")
        let_records_age(box, minutes=2)
        other_worker(box, mailer="*")
        assert "No running worker" not in caplog.text


def test_workers_that_start_at_once_record_everything_and_wait_for_each_other(box: Outbox) -> None:
    patterns = [{f"own{n}": "*", "shared": f"type{n}"} for n in range(6)]
    at_once(box.database, [partial(other_worker, box, **each) for each in patterns])
    found = recorded(box)
    assert set(found) == {"shared", *(f"own{n}" for n in range(6))}
    assert len(found["shared"].patterns) == 6


@on_postgres
def test_a_process_that_is_frozen_while_it_records_does_not_keep_others_from_refreshing(
    box: Outbox, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = other_worker(box, mailer="*")
    parts = (worker.dialect, worker.registry, worker.recorded_destinations, worker.warn_once)
    recorder = Recorder(*parts, lock_seconds=0.1)
    recorder.keep_current()
    recorder._due_at = 0.0
    replace_delivery(worker, recorder=recorder)
    caplog.set_level("DEBUG")
    with psycopg.connect(postgres_url) as frozen:
        frozen.execute("SELECT FROM outbox_control FOR UPDATE")
        worker.drain()
    assert "could not be recorded again" in caplog.text


@on_postgres
def test_a_process_that_is_frozen_while_it_changes_the_destinations_is_ended_by_the_server(
    box: Outbox, postgres_url: str
) -> None:
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    with psycopg.connect(postgres_url, autocommit=True) as other:

        def freeze() -> None:
            with change_recorded(box.dialect, lock_seconds=0.2):
                becomes_true(lambda: other.execute(sessions).fetchone() == (0,))

        with pytest.raises(peewee.PeeweeException):
            freeze()
    other_worker(box, mailer="*")
    assert recorded(box)["mailer"].alive
