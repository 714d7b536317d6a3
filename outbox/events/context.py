"""What an event carries along without every caller passing it: correlation id and tenant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_correlation_id: ContextVar[str | None] = ContextVar("outbox_correlation_id", default=None)
_tenant_id: ContextVar[str | None] = ContextVar("outbox_tenant_id", default=None)


@contextmanager
def context(*, correlation_id: str | None = None, tenant_id: str | None = None) -> Iterator[None]:
    """Events emitted inside the block carry these, unless `emit` says otherwise.

    Handlers run inside the context of their event, so what they emit belongs to the same story.
    """
    correlation = _correlation_id.set(correlation_id if correlation_id is not None else _correlation_id.get())
    tenant = _tenant_id.set(tenant_id if tenant_id is not None else _tenant_id.get())
    try:
        yield
    finally:
        _correlation_id.reset(correlation)
        _tenant_id.reset(tenant)


def in_force() -> tuple[str | None, str | None]:
    """The correlation id and the tenant id that are in force here."""
    return _correlation_id.get(), _tenant_id.get()
