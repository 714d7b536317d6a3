"""What a handler says about its attempts: how many, and how long it waits between them."""

from datetime import timedelta
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.models import DELIVERED, FAILED, PENDING
from tests.conftest import Configure
from tests.support.table import claimed, emit_one, error_of, expire_leases, let_pass, stored


def refuse(_: outbox.Event) -> None:
    raise ValueError("no")


def entry(event: outbox.OutboxEvent, name: str) -> dict[str, Any]:
    return dict(stored(event).progress[name])


class TestMaxAttempts:
    @pytest.mark.parametrize(("of_the_event", "of_the_handler"), [(5, 2), (2, 3)])
    def test_replaces_that_of_the_event_at_this_handler(
        self, box: Outbox, of_the_event: int, of_the_handler: int
    ) -> None:
        seen: list[tuple[int, int]] = []

        @outbox.handler("*", name="limited", max_attempts=of_the_handler)
        def limited(event: outbox.Event) -> None:
            seen.append((event.attempt, event.max_attempts))
            raise ValueError("no")

        event = emit_one(max_attempts=of_the_event)
        while stored(event).status == PENDING:
            box.process_pending_events()
            let_pass(hours=2)
        assert seen == [(number, of_the_handler) for number in range(1, of_the_handler + 1)]
        assert (stored(event).status, stored(event).attempts) == (FAILED, of_the_handler)

    def test_leaves_other_handlers_to_the_event(self, box: Outbox) -> None:
        seen: list[tuple[int, int]] = []
        outbox.handler("*", name="limited", max_attempts=1)(refuse)

        @outbox.handler("*", name="other")
        def other(event: outbox.Event) -> None:
            seen.append((event.attempt, event.max_attempts))
            if event.attempt < 3:
                raise ValueError("no")

        event = emit_one(max_attempts=3)
        for _ in range(3):
            box.process_pending_events()
            let_pass(hours=2)
        assert seen == [(1, 3), (2, 3), (3, 3)]
        assert stored(event).status == FAILED
        assert (entry(event, "limited")["attempts"], entry(event, "other")["state"]) == (1, DELIVERED)

    def test_a_worker_that_dies_after_more_attempts_than_the_events_costs_one_of_them(self, box: Outbox) -> None:
        seen: list[int] = []

        @outbox.handler("*", name="patient", max_attempts=9)
        def patient(event: outbox.Event) -> None:
            seen.append(event.attempt)
            refuse(event)

        event = emit_one(max_attempts=2)
        for _ in range(4):
            box.process_pending_events()
            let_pass(hours=2)
        claimed(box)  # by a worker that dies
        expire_leases()
        box.process_pending_events()
        assert (stored(event).status, seen) == (PENDING, [1, 2, 3, 4, 5])

    def test_an_event_that_kills_its_workers_fails_after_its_own_number_of_deaths(self, box: Outbox) -> None:
        outbox.handler("*", name="patient", max_attempts=9)(refuse)
        event = emit_one(max_attempts=3)
        for _ in range(4):
            box.process_pending_events()
            let_pass(hours=2)
        for _ in range(3):
            assert stored(event).status != FAILED
            claimed(box)
            expire_leases()
        box.process_pending_events()
        assert (stored(event).status, "the worker died" in error_of(event)) == (FAILED, True)


class TestBackoff:
    def test_replaces_the_waits_of_the_settings_at_this_handler(self, configure: Configure) -> None:
        box = configure(backoff_base_seconds=60)
        waits = outbox.Backoff(base=timedelta(seconds=4), cap=timedelta(seconds=10))
        outbox.handler("*", name="quick", backoff=waits)(refuse)
        outbox.handler("*", name="usual")(refuse)
        event = emit_one(max_attempts=9)
        due = []
        for _ in range(3):
            box.process_pending_events()
            due.append(stored(event).next_attempt_at - stored(event).updated_at)
            let_pass(seconds=11)
        assert [round(each.total_seconds()) for each in due] == [4, 8, 10]
        assert (entry(event, "quick")["attempts"], entry(event, "usual")["attempts"]) == (3, 1)

    def test_holds_while_the_handler_is_unavailable_too(self, configure: Configure) -> None:
        box = configure(backoff_base_seconds=60)

        @outbox.handler("*", name="away", backoff=outbox.Backoff(base=timedelta(seconds=3)))
        def away(_: outbox.Event) -> None:
            raise outbox.Unavailable("not there")

        event = emit_one()
        box.process_pending_events()
        wait = stored(event).next_attempt_at - stored(event).updated_at
        assert round(wait.total_seconds()) == 3

    def test_leaves_what_it_does_not_name_to_the_settings(self) -> None:
        settings = Settings(backoff_base_seconds=1, backoff_cap_seconds=2, backoff_jitter=True)
        assert outbox.Backoff().applied_to(settings) == settings
        changed = outbox.Backoff(cap=timedelta(minutes=1), jitter=False).applied_to(settings)
        assert changed == Settings(backoff_base_seconds=1, backoff_cap_seconds=60, backoff_jitter=False)


@pytest.mark.parametrize(
    "wrong",
    [{"base": 5}, {"cap": timedelta(seconds=-1)}, {"base": timedelta(days=366)}, {"jitter": 1}, {"cap": "1m"}],
    ids=str,
)
def test_a_wait_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(outbox.RegistrationError, match=f"^{next(iter(wrong))} must be "):
        outbox.Backoff(**wrong)


@pytest.mark.parametrize("wrong", [{"max_attempts": 0}, {"max_attempts": 1001}, {"max_attempts": True}, {"backoff": 5}])
def test_a_policy_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(outbox.RegistrationError, match=f"^{next(iter(wrong))} of 'x' must be "):
        outbox.handler("*", name="x", **wrong)(refuse)


def test_a_destination_of_ones_own_may_have_them_too(box: Outbox) -> None:
    class Own:
        name, events, max_attempts = "own", ("*",), 1

        def deliver(self, events: Any, lease: outbox.Lease) -> Any:
            return [(event, outbox.Retry("no")) for event in events]

    outbox.add_destination(Own())
    event = emit_one()
    box.process_pending_events()
    assert stored(event).status == FAILED
    wrong: Any = Own()
    wrong.name, wrong.max_attempts = "wrong", 0
    with pytest.raises(outbox.RegistrationError, match="max_attempts of 'wrong'"):
        outbox.add_destination(wrong)
