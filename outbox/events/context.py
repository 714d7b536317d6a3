"""The correlation id and the tenant id that events inherit, so that not every caller has to pass them to `emit`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_correlation_id: ContextVar[str | None] = ContextVar("outbox_correlation_id", default=None)
_tenant_id: ContextVar[str | None] = ContextVar("outbox_tenant_id", default=None)


@contextmanager
def context(*, correlation_id: str | None = None, tenant_id: str | None = None) -> Iterator[None]:
    """Give these ids to the events that are emitted inside the block, unless `emit` is given others.

    Handlers run inside the context of their event, so the events that they emit have the same ids.
    """
    correlation = _correlation_id.set(correlation_id if correlation_id is not None else _correlation_id.get())
    tenant = _tenant_id.set(tenant_id if tenant_id is not None else _tenant_id.get())
    try:
        yield
    finally:
        _correlation_id.reset(correlation)
        _tenant_id.reset(tenant)


def inherited_context() -> tuple[str | None, str | None]:
    """Return the correlation id and the tenant id that an event emitted here inherits."""
    return _correlation_id.get(), _tenant_id.get()
