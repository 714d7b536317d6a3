"""Retiring destinations: by an operator, by their successor, or because no worker has had them for long."""

import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.retirement import retire, retire_absent
from outbox.errors import RegistrationError
from outbox.telemetry import audit
from outbox.telemetry.audit import Operator
from tests.conftest import Configure
from tests.support.recorded_destinations import let_records_age, recorded, refresh
from tests.support.table import emit_one, other_worker


class TestAbsence:
    def test_for_the_maximum_age_retires_a_name(self, configure: Configure, caplog: pytest.LogCaptureFixture) -> None:
        box = configure(max_age_hours=10, cleanup_minutes=60)
        other_worker(box, crm="*")
        mailer = other_worker(box, mailer="*")
        retired: list[list[str]] = []
        for _ in range(12):
            let_records_age(box, hours=1, seconds=1)  # a little more: SQLite's clock rounds
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
        """After all workers were stopped for long, the first one to start must not retire what the others have."""
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
            let_records_age(box, minutes=6, seconds=1)  # a little more: SQLite's clock rounds
            refresh(mailer)
            box.delete_old_records()
        assert recorded(box)["crm"].retired


class TestRetiring:
    def test_is_refused_while_a_running_worker_has_it(self, box: Outbox) -> None:
        other_worker(box, crm="*")
        with pytest.raises(RegistrationError, match="A running worker has the destination 'crm'"):
            retire(box.dialect, "crm", retired_by=Operator("ada"))
        retire(box.dialect, "crm", retired_by=Operator("ada"), force=True)
        assert recorded(box)["crm"].retired

    def test_is_in_the_audit_log(self, box: Outbox) -> None:
        other_worker(box, crm="*")
        let_records_age(box, minutes=4)
        retire(box.dialect, "crm", retired_by=Operator("ada"))
        (entry,) = audit.latest(box.dialect)
        assert (entry.who, entry.action, entry.filters) == (
            "ada",
            "retire",
            {"destination": "crm", "replaced_by": None},
        )

    def test_of_an_unknown_name_is_refused_with_the_recorded_names(self, box: Outbox) -> None:
        with pytest.raises(RegistrationError, match=r"'typo' is recorded\. No worker has recorded any"):
            retire(box.dialect, "typo", retired_by=Operator("ada"))
        other_worker(box, crm="*")
        with pytest.raises(RegistrationError, match=r"'typo' is recorded\. Recorded are: crm\."):
            retire(box.dialect, "typo", retired_by=Operator("ada"))

    def test_is_not_undone_by_a_worker_that_is_running(self, box: Outbox) -> None:
        worker = other_worker(box, crm="*")
        retire(box.dialect, "crm", retired_by=Operator("ada"), force=True)
        refresh(worker)
        assert recorded(box)["crm"].retired

    def test_ends_for_the_patterns_that_a_worker_brings_back(self, box: Outbox) -> None:
        other_worker(box, crm="order.* user.*")
        retire(box.dialect, "crm", retired_by=Operator("ada"), force=True)
        other_worker(box, crm="order.*")
        assert (recorded(box)["crm"].retired, set(recorded(box)["crm"].patterns)) == (False, {"order.*"})

    def test_is_logged_by_a_process_that_has_the_name_registered(
        self, box: Outbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        other_worker(box, crm="*")
        retire(box.dialect, "crm", retired_by=Operator("ada"), force=True)
        outbox.handler("*", name="crm")(lambda _: None)
        outbox.handler("*", name="mailer")(lambda _: None)
        emit_one()
        box.process_pending_events()
        emit_one("order.paid")
        box.process_pending_events()
        assert caplog.text.count("The destination crm is registered in this process, but it is retired") == 1

    def test_of_a_replaced_name_ends_when_its_successor_is_gone(self, box: Outbox) -> None:
        """As when the release that renamed it is rolled back."""
        other_worker(box, mailer="*")
        new = Outbox(box.settings, database=box.database)
        new.registry.handler("*", name="mailer-v2", replaces="mailer")(lambda _: None)
        new.become_worker()
        new.recorder.keep_current()
        assert recorded(box)["mailer"].replaced_by == "mailer-v2"
        let_records_age(box, minutes=4)
        other_worker(box, mailer="*")
        assert not recorded(box)["mailer"].retired
