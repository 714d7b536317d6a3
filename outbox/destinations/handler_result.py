"""Refuse the result of a handler that has not done its work: a coroutine or another awaitable, or a generator.

Calling a function with `async def` or `yield` does not run it. The call only returns an object that has to be awaited
or iterated. `@outbox.handler` recognises a function with `async def`, and awaits it. It can't recognise such a function
inside a decorator, a handler that ends with `return work(event)` where `work` is one, or an object with
`async def __call__`. So the result is checked. Handlers of events and of the inbox are checked like this.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator

UNFINISHED = (Awaitable, Generator, AsyncGenerator)


def check_handler_result(name: str, result: object) -> None:
    """Raise TypeError if `result`, which the handler called `name` returned, is work that still has to be done."""
    if result is None or not isinstance(result, UNFINISHED):
        return
    if isinstance(result, Coroutine | Generator):
        with contextlib.suppress(Exception):
            result.close()  # otherwise Python warns that it was never awaited
    raise TypeError(
        f"{name} returned a {type(result).__name__} instead of doing its work, so nothing was done: it is called, not "
        "awaited or iterated. Register an `async def` function itself, or write a plain function without `yield`; run "
        "a coroutine inside it with asyncio.run(...)."
    )
