"""Refuse a call's result that is work still to be done: a coroutine or another awaitable, or a generator.

`async def` and `yield` make a function that only returns its work when it is called. So do a decorator around such a
function, `return work(event)`, and `async def __call__`; only the result tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator

KINDS = (Awaitable, Generator, AsyncGenerator)


def check_handler_result(name: str, result: object) -> None:
    """Raise TypeError if `result`, which the function called `name` returned, is work that nobody will do."""
    if result is None or not isinstance(result, KINDS):
        return
    if isinstance(result, Coroutine | Generator):
        with contextlib.suppress(Exception):
            result.close()  # otherwise Python warns that it was never awaited
    raise TypeError(
        f"{name} returned a {type(result).__name__} instead of doing its work, so nothing was done: it is called, not "
        "awaited or iterated. Write a plain function without `async` and `yield`; run a coroutine inside it with "
        "asyncio.run(...)."
    )
