"""Access OpenTelemetry, if the application uses it.

This module imports OpenTelemetry only if the application has imported it already: an application that has set up an SDK
has done so, and without an SDK there is nothing to trace. `emit` stores the context of the current span in an event's
headers; the span of the event's delivery continues that context (`destinations/delivery_span.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from outbox.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

API = "opentelemetry.trace"


def tracer() -> Tracer | None:
    """Return the tracer of this library, or None if no SDK is set up."""
    if API not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("outbox", __version__)


def with_context(headers: Any) -> Any:
    """Return an event's headers with the context of the current span, unless the caller has set such a header."""
    if API not in sys.modules:
        return headers
    span = _get_current_span()()
    if not span.get_span_context().is_valid or not isinstance(headers, Mapping | None):
        return headers
    carrier = inject(span)
    if headers is None:
        return carrier
    return headers if any(name in headers for name in carrier) else carrier | dict(headers)


@cache
def _get_current_span() -> Callable[[], Span]:
    """Return OpenTelemetry's function. It is imported once: an import for each event takes longer than the call."""
    from opentelemetry.trace import get_current_span

    return get_current_span


class HasSpan(Protocol):
    """An event: `span` is the span of its delivery, or None."""

    span: Any


@contextmanager
def inside(event: HasSpan) -> Iterator[None]:
    """Make the span of the event's delivery the current span inside the block; do nothing without one.

    An application's own destination classes may use it, too.
    """
    if event.span is None:
        yield
        return
    from opentelemetry import trace

    with trace.use_span(event.span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
        yield


def inject(span: Span) -> dict[str, str]:
    """Return the headers that carry the span's context, as the configured propagator writes them.

    Baggage is left out: it is not meant for every receiver of an event.
    """
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context

    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span, Context()))
    return carrier


def extract(headers: Mapping[str, Any]) -> Context:
    """Return the context that an event's headers carry; the worker's own current context is never part of it."""
    from opentelemetry import propagate
    from opentelemetry.context import Context

    return propagate.extract({name: text for name, text in headers.items() if isinstance(text, str)}, Context())
