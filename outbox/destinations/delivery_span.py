"""Trace the delivery of an event to a destination, as one OpenTelemetry span.

The span continues the trace in which the event was emitted, and is linked to the span that emitted it. During the
delivery the span is on the event (`event.span`): handlers run inside it, and webhooks send its context as headers.
Delivery calls these functions only if it has a tracer (`tracing.tracer()`), so OpenTelemetry is installed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from outbox.destinations.handler import Handler
from outbox.destinations.outcome import Delivered, Outcome
from outbox.destinations.protocol import Destination
from outbox.events.event import Event
from outbox.storage.models import JOB
from outbox.telemetry import tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger(__name__)

SYSTEM = "outbox"


def start_span(tracer: Tracer, event: Event, destination: Destination) -> None:
    """Start the span of a delivery, and put it on the event.

    An error is only logged: a delivery must not fail because it can't be traced.
    """
    try:
        event.span = _start(tracer, event, destination)
    except Exception as error:
        logger.debug("A delivery is not traced: %s", error)


def _start(tracer: Tracer, event: Event, destination: Destination) -> Span:
    from opentelemetry import trace

    emitted_in = tracing.extract(event.headers)
    creator = trace.get_current_span(emitted_in).get_span_context()
    is_handler = isinstance(destination, Handler)
    operation = "process" if is_handler else "send"
    attributes: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": destination.name,
        "messaging.message.id": str(event.id),
        "outbox.attempt": event.attempt,
        **_about(event),
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


def _about(event: Event) -> dict[str, str]:
    """Return the attributes that say what an event is about, or which actor a job is for."""
    if event.kind == JOB:
        return {"outbox.job.actor": event.event_type, "outbox.job.queue": event.aggregate_type}
    return {"outbox.event.type": event.event_type, "outbox.aggregate.type": event.aggregate_type}


def end_span(event: Event, outcome: Outcome) -> None:
    """End the span of a delivery, with its outcome, and remove it from the event."""
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
