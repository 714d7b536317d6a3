"""Tracing, where OpenTelemetry is in use.

Nothing of it is imported here that the process has not imported itself: who has set up an SDK has, and without one
there is nothing to trace. An event carries the context that it was emitted in; its delivery is a span that continues
and is linked to it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from outbox.destinations.outcome import Delivered, Outcome
from outbox.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from outbox.destinations.protocol import Destination
    from outbox.events.event import Event

logger = logging.getLogger("outbox")

API = "opentelemetry.trace"
SYSTEM = "outbox"


def with_context(headers: Any) -> Any:
    """The headers of an event with the context that it is emitted in; the caller's own win."""
    if API not in sys.modules:
        return headers
    span = _current_span_of()()
    if not span.get_span_context().is_valid or not isinstance(headers, Mapping | None):
        return headers
    carrier = _injected(span)
    if headers is None:
        return carrier
    return headers if any(name in headers for name in carrier) else carrier | dict(headers)


@cache
def _current_span_of() -> Callable[[], Span]:
    """Imported once: importing again, for every event, takes longer than calling it."""
    from opentelemetry.trace import get_current_span

    return get_current_span


def tracer() -> Tracer | None:
    """None unless an SDK is set up."""
    if API not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("outbox", __version__)


def begin(tracer: Tracer, event: Event, destination: Destination) -> None:
    """The delivery of an event to a destination begins: the event carries the span from here on."""
    try:
        event.span = _started(tracer, event, destination)
    except Exception as error:  # no delivery fails for want of its trace
        logger.debug("a delivery is not traced: %s", error)


def _started(tracer: Tracer, event: Event, destination: Destination) -> Span:
    from opentelemetry import trace

    from outbox.destinations.handler import Handler  # which knows this module

    emitted_in = _extracted(event.headers)
    creator = trace.get_current_span(emitted_in).get_span_context()
    is_handler = isinstance(destination, Handler)
    operation = "process" if is_handler else "send"
    attributes: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": destination.name,
        "messaging.message.id": str(event.id),
        "outbox.event.type": event.event_type,
        "outbox.aggregate.type": event.aggregate_type,
        "outbox.attempt": event.attempt,
    }
    if event.correlation_id is not None:
        attributes["messaging.message.conversation_id"] = event.correlation_id
    return tracer.start_span(
        f"{operation} {destination.name}",
        context=emitted_in,
        kind=trace.SpanKind.CONSUMER if is_handler else trace.SpanKind.PRODUCER,
        links=[trace.Link(creator)] if creator.is_valid else None,
        attributes=attributes,
    )


def end(event: Event, outcome: Outcome) -> None:
    """The destination has answered."""
    from opentelemetry.trace import Status, StatusCode

    span: Span | None = event.span
    if span is None:
        return
    event.span = None
    name = type(outcome).__name__.lower()
    span.set_attribute("outbox.outcome", name)
    if isinstance(outcome, Delivered):
        span.set_status(Status(StatusCode.OK))
    else:
        span.set_attribute("error.type", name)
        span.set_status(Status(StatusCode.ERROR, outcome.error))
    span.end()


@contextmanager
def inside(event: Event) -> Iterator[None]:
    """What happens inside the block belongs to the event's delivery."""
    if event.span is None:
        yield
        return
    from opentelemetry import trace

    with trace.use_span(event.span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
        yield


def outgoing(event: Event) -> dict[str, str] | None:
    """What a request carries so that its receiver's trace continues the delivery; None without a span."""
    return None if event.span is None else _injected(event.span)


def _injected(span: Span) -> dict[str, str]:
    """By the configured propagator; of the span alone, since baggage is not meant for everybody who gets an event."""
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context

    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span, Context()))
    return carrier


def _extracted(headers: Mapping[str, Any]) -> Context:
    """Never the context that happens to be around: a worker's own is not the event's."""
    from opentelemetry import propagate
    from opentelemetry.context import Context

    return propagate.extract({name: text for name, text in headers.items() if isinstance(text, str)}, Context())
