"""The doctor's check for risky settings, and for destinations that outlast a lease."""

from typing import Any

import pytest

import outbox
from outbox.admin.doctor.check import NOTE, OK, PROBLEM, WARNING
from outbox.admin.doctor.settings import retries_hours
from outbox.core import Outbox
from outbox.settings import Settings
from tests.admin.doctor.findings import advice_of, finding_of, findings_of
from tests.admin.doctor.published_processes import publish_process
from tests.admin.doctor.unsafe_settings import UNSAFE
from tests.conftest import Configure

once = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
DEFAULTS: dict[str, Any] = {"publish_seconds": 10}


@once
def test_the_defaults_are_fine(configure: Configure) -> None:
    assert finding_of(configure(**DEFAULTS), "settings").level == OK


def test_on_postgresql_a_required_transaction_is_recommended(configure: Configure) -> None:
    box = configure(**DEFAULTS)
    found = finding_of(box, "settings")
    if box.dialect.name == "sqlite":
        assert found.level == OK
    else:
        assert found.level == NOTE
        assert "outbox.configure(database=db)" in found.what
        assert "OUTBOX_REQUIRE_TRANSACTION=true" in advice_of(found)
    assert finding_of(configure(**DEFAULTS, require_transaction=True), "settings").level == OK


@once
@pytest.mark.parametrize(("variable", "unsafe", "safe"), UNSAFE, ids=[f"{each[0]}-{each[1]}" for each in UNSAFE])
def test_what_is_unsafe_is_a_warning_that_names_the_setting_and_what_is_just_safe_is_fine(
    configure: Configure, variable: str, unsafe: dict[str, Any], safe: dict[str, Any]
) -> None:
    (found,) = findings_of(configure(**DEFAULTS | unsafe), "settings")
    assert (found.level, variable in advice_of(found)) == (WARNING, True)
    assert finding_of(configure(**DEFAULTS | safe), "settings").level == OK


def test_an_event_is_retried_for_the_sum_of_the_backoffs_or_for_the_maximum_age() -> None:
    five: dict[str, Any] = {
        "max_attempts": 5,
        "backoff_base_seconds": 60.0,
        "backoff_cap_seconds": 3600.0,
        "max_age_hours": 0.0,
    }
    assert retries_hours(Settings(**five, backoff_jitter=False)) == (60 + 120 + 240 + 480) / 3600
    assert retries_hours(Settings(**five)) == 1.25 * (60 + 120 + 240 + 480) / 3600
    assert retries_hours(Settings(**five | {"max_age_hours": 72.0})) == 72
    capped = five | {"max_attempts": 1000, "backoff_cap_seconds": 60.0}
    assert retries_hours(Settings(**capped, backoff_jitter=False)) == 999 * 60 / 3600


# Deadlines


def test_a_destination_that_may_take_longer_than_a_lease_is_renewed_is_a_problem(configure: Configure) -> None:
    box = configure(max_run_seconds=60)
    outbox.add_destination(outbox.Webhook("billing", "http://127.0.0.1/", timeout=55))
    assert finding_of(box, "deadlines").level == OK
    outbox.add_destination(outbox.Webhook("slow", "http://127.0.0.1/", timeout=56))
    (found,) = findings_of(box, "deadlines")
    assert (found.level, "A delivery to slow may take 1 min" in found.what) == (PROBLEM, True)
    assert "Set OUTBOX_MAX_RUN_SECONDS to 61 or more" in advice_of(found)


def test_a_destination_of_a_worker_is_compared_with_that_workers_settings(box: Outbox) -> None:
    slow = {"slow": {"kind": "Webhook", "seconds": 100.0, "events": ["*"]}}
    publish_process(box, destinations=slow)
    assert finding_of(box, "deadlines").level == OK
    publish_process(box, pid=2, destinations=slow, settings={"max_run_seconds": 90.0})
    publish_process(box, pid=3, destinations=slow)
    found = finding_of(box, "deadlines")
    assert (found.level, "OUTBOX_MAX_RUN_SECONDS (90)" in found.what) == (PROBLEM, True)
