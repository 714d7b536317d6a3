"""The keyword arguments of `@outbox.handler`, for type checkers: its overloads share them. A test compares the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from outbox.destinations.backoff import Backoff
from outbox.destinations.order_policy import OnFailed


class HandlerOptions(TypedDict, total=False):
    name: str | None
    replaces: str | Sequence[str]
    concurrency: int | None
    per_second: float | None
    ordered: bool
    on_failed: OnFailed
    max_attempts: int | None
    backoff: Backoff | None
