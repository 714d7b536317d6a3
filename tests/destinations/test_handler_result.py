"""A handler that only returns its work - a coroutine, a generator - has done nothing, and is not delivered."""

import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.storage.models import DELIVERED, PENDING
from tests.inbox.effects import inbox_rows
from tests.support.table import emit_one, error_of, stored


async def work(_: outbox.Event) -> None: ...


def same(function: Callable[[outbox.Event], Any]) -> Callable[[outbox.Event], Any]:
    """A decorator as they are usually written: it hides what it decorates."""

    def call(event: outbox.Event) -> Any:
        return function(event)

    return call


class Asynchronous:
    async def __call__(self, event: outbox.Event) -> None: ...


class Promise:
    def __await__(self) -> Iterator[None]:
        yield


def returns_a_coroutine(event: outbox.Event) -> Awaitable[None]:
    return work(event)


def yields(_: outbox.Event) -> Iterator[None]:
    yield


async def yields_asynchronously(_: outbox.Event) -> AsyncIterator[None]:
    yield


DEFERRED = [Asynchronous(), same(work), returns_a_coroutine, yields, yields_asynchronously, lambda _: Promise()]
NAMES = ["async-call", "decorated", "returned", "yield", "async-yield", "awaitable"]


@pytest.mark.parametrize("handler", DEFERRED, ids=NAMES)
@pytest.mark.parametrize("fields", [{}, {"correlation_id": "c-1"}], ids=["plain", "in-context"])
def test_unfinished_work_is_a_failed_attempt_that_says_why_and_python_warns_of_nothing(
    box: Outbox, handler: Callable[[outbox.Event], Any], fields: dict[str, str]
) -> None:
    outbox.handler("order.*", name="late")(handler)
    event = emit_one(**fields)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        box.process_pending_events()
        gc.collect()
    assert (stored(event).status, stored(event).attempts) == (PENDING, 1)
    assert "late returned a" in error_of(event)
    assert "asyncio.run" in error_of(event)
    assert [str(each.message) for each in warned if each.category is RuntimeWarning] == []


@pytest.mark.parametrize("result", [True, 0, "text", {"a": 1}, [1], object()])
def test_any_other_result_is_delivered(box: Outbox, result: object) -> None:
    outbox.handler("order.*", name="prompt")(lambda _: result)
    event = emit_one()
    box.process_pending_events()
    assert stored(event).status == DELIVERED


def test_the_inbox_does_not_record_unfinished_work_as_done(box: Outbox) -> None:
    outbox.handler("order.*", name="late")(outbox.inbox.once("late")(same(work)))
    event = emit_one()
    box.process_pending_events()
    assert (stored(event).status, inbox_rows()) == (PENDING, [])
