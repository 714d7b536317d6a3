"""Declaring periodic jobs: what may be declared, under which name, and which mistakes are refused."""

from collections.abc import Iterator
from typing import Any

import dramatiq
import dramatiq.broker
import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox import current_outbox
from outbox.destinations.periodic_job import ACTOR, FUNCTION, PeriodicJob
from outbox.errors import RegistrationError
from tests.support.program import run_python


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubBroker]:
    broker = StubBroker()
    monkeypatch.setattr(dramatiq.broker, "global_broker", broker)
    yield broker
    current_outbox.registry.clear()


def declared() -> dict[str, PeriodicJob]:
    return dict(current_outbox.registry.periodic)


def work(run: outbox.Run) -> None:
    """A function that may be declared."""


class TestNames:
    def test_a_function_has_its_path(self) -> None:
        assert outbox.periodic(minutes=5)(work) is work
        assert [(name, job.kind) for name, job in declared().items()] == [
            ("tests.scheduler.test_periodic.work", FUNCTION)
        ]

    def test_an_actor_has_the_actors_name(self) -> None:
        @outbox.periodic(cron="0 3 * * *")
        @dramatiq.actor(actor_name="report")
        def nightly() -> None: ...

        assert isinstance(nightly, dramatiq.Actor)
        assert [(name, job.kind, job.actor) for name, job in declared().items()] == [("report", ACTOR, nightly)]

    def test_a_class_based_actor_is_an_actor(self) -> None:
        @outbox.periodic(hours=1)
        class Report(dramatiq.GenericActor):
            def perform(self) -> None: ...

        assert declared()["Report"].kind == ACTOR

    def test_a_name_may_be_given(self) -> None:
        outbox.periodic(minutes=5, name="rates")(work)
        outbox.periodic(minutes=5, name="rates of yesterday")(work)
        assert list(declared()) == ["rates", "rates of yesterday"]

    def test_two_of_one_name_are_refused(self) -> None:
        outbox.periodic(minutes=5, name="rates")(work)
        with pytest.raises(RegistrationError, match="Two periodic jobs are called 'rates'"):
            outbox.periodic(hours=1, name="rates")(work)
        assert declared()["rates"].schedule.text == "minutes=5"

    @pytest.mark.parametrize("name", ["", " ", " rates", "rates.*", "a\nb", "x" * 101, "\x00", 5])
    def test_a_name_that_could_not_be_stored_or_shown_is_refused(self, name: Any) -> None:
        with pytest.raises(RegistrationError, match="The name of a periodic job"):
            outbox.periodic(minutes=5, name=name)(work)


class TestMistakes:
    def test_without_parentheses(self) -> None:
        with pytest.raises(RegistrationError, match=r"write @outbox\.periodic\(cron="):
            outbox.periodic(work)  # type: ignore[arg-type, call-arg]

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({}, "needs a schedule"),
            ({"cron": "0 3 * * *", "minutes": 5}, "not both"),
            ({"cron": "0 25 * * *"}, "the field hour is '25'"),
            ({"minutes": 0}, "minutes=0 is not"),
            ({"minutes": -1}, "minutes=-1 is not"),
            ({"cron": "0 3 * * *", "timezone": "Mars/Base"}, "There is no timezone 'Mars/Base'"),
            ({"minutes": 5, "catch_up": "some"}, "catch_up must be one of latest, all, none, not 'some'"),
            ({"minutes": 5, "overlap": "wait"}, "overlap must be one of allow, skip, not 'wait'"),
        ],
    )
    def test_in_the_options_are_found_before_anything_is_decorated(self, options: Any, error: str) -> None:
        with pytest.raises(RegistrationError, match=error):
            outbox.periodic(**options)

    @pytest.mark.parametrize("attempts", [0, -1, 1001, "5", 1.0, True])
    def test_a_wrong_number_of_attempts(self, attempts: Any) -> None:
        with pytest.raises(RegistrationError, match="max_attempts must be a whole number from 1 to 1000"):
            outbox.periodic(minutes=5, max_attempts=attempts)(work)

    def test_a_function_that_does_not_take_the_run(self) -> None:
        with pytest.raises(RegistrationError, match=r"a periodic function gets the run alone.*above @dramatiq\.actor"):
            outbox.periodic(minutes=5)(lambda: None)

    def test_a_coroutine_function(self) -> None:
        async def fetch(run: outbox.Run) -> None: ...

        with pytest.raises(RegistrationError, match="is a coroutine function"):
            outbox.periodic(minutes=5)(fetch)

    def test_something_that_is_no_function(self) -> None:
        with pytest.raises(RegistrationError, match="takes a function or an actor, not 'work'"):
            outbox.periodic(minutes=5)("work")

    def test_overlap_for_an_actor_says_why(self) -> None:
        with pytest.raises(RegistrationError, match="does not know whether the actor still runs"):
            outbox.periodic(minutes=5, overlap="skip")(dramatiq.actor(actor_name="a")(lambda: None))

    def test_attempts_for_an_actor_say_what_to_use(self) -> None:
        with pytest.raises(RegistrationError, match="pass max_retries to @dramatiq"):
            outbox.periodic(minutes=5, max_attempts=3)(dramatiq.actor(actor_name="a")(lambda: None))

    def test_an_actor_that_needs_arguments(self) -> None:
        with pytest.raises(RegistrationError, match="The actor a can't be called without arguments"):
            outbox.periodic(minutes=5)(dramatiq.actor(actor_name="a")(lambda user: None))


def test_declaring_opens_no_database_and_starts_no_thread() -> None:
    said = run_python(
        "import outbox, threading\n"
        "outbox.periodic(minutes=5, name='job')(lambda run: None)\n"
        "from outbox import current_outbox\n"
        "print(current_outbox.is_configured(), threading.active_count())"
    )
    assert said.split() == ["False", "1"]
