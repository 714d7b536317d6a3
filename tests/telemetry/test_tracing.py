"""Traces: an event carries the context it was emitted in, and each delivery is a span that goes on from there."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanKind, StatusCode

import outbox
from outbox.core import Outbox
from outbox.destinations.outcome import Outcome
from outbox.destinations.protocol import Lease
from outbox.events.event import Event
from outbox.telemetry import tracing
from tests.conftest import Configure
from tests.consumer.conftest import make_consumer, stream
from tests.consumer.streams import MakeConsumer, Stream, consume
from tests.support.jobs import charge, send, stub_broker
from tests.support.program import run_python
from tests.support.receiver import Receiver, answers
from tests.support.table import emit, emit_one, let_pass, stored

__all__ = ["charge", "make_consumer", "stream", "stub_broker"]


class Recorder:
    """An SDK that keeps what was traced."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def span(self, name: str = "request") -> Any:
        return self.provider.get_tracer("tests").start_as_current_span(name)

    def deliveries(self) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(("process ", "send "))]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", recorder.provider)
    yield recorder
    recorder.provider.shutdown()


def traceparent(span: Any) -> str:
    about = span.get_span_context()
    return f"00-{about.trace_id:032x}-{about.span_id:016x}-{about.trace_flags:02x}"


class TestEmit:
    def test_stores_the_context_that_it_is_called_in(self, box: Outbox, recorder: Recorder) -> None:
        with recorder.span() as span:
            one = emit_one()
            (many,) = emit(1)
        for event in (one, many):
            assert stored(event).headers == event.headers == {"traceparent": traceparent(span)}

    def test_stores_nothing_outside_a_span(self, box: Outbox, recorder: Recorder) -> None:
        assert stored(emit_one()).headers == {}

    def test_keeps_the_callers_headers_beside_it(self, box: Outbox, recorder: Recorder) -> None:
        with recorder.span() as span:
            event = emit_one(headers={"x": 1})
        assert stored(event).headers == {"x": 1, "traceparent": traceparent(span)}

    def test_keeps_the_trace_of_the_callers_headers(self, box: Outbox, recorder: Recorder) -> None:
        with recorder.span():
            event = emit_one(headers={"traceparent": "mine"})
        assert stored(event).headers == {"traceparent": "mine"}

    def test_stores_no_baggage(self, box: Outbox, recorder: Recorder) -> None:
        token = context.attach(baggage.set_baggage("customer", "ada"))
        try:
            with recorder.span():
                event = emit_one()
        finally:
            context.detach(token)
        assert "baggage" in propagate.get_global_textmap().fields
        assert set(stored(event).headers) == {"traceparent"}

    def test_refuses_invalid_headers_inside_a_span_too(self, box: Outbox, recorder: Recorder) -> None:
        with recorder.span(), pytest.raises(outbox.InvalidEvent, match="headers"):
            emit_one(headers=["x"])

    def test_uses_the_configured_propagator(
        self, box: Outbox, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", CompositePropagator([]))
        with recorder.span():
            assert stored(emit_one()).headers == {}


def raises(error: Exception) -> Any:
    def handle(event: Event) -> None:
        raise error

    return handle


class TestADelivery:
    def test_of_a_job_is_a_span_that_names_its_actor_and_queue(
        self, box: Outbox, recorder: Recorder, charge: Any
    ) -> None:
        send(charge, 1)
        box.process_pending_events()
        (span,) = recorder.deliveries()
        attributes = dict(span.attributes or {})
        assert (attributes["outbox.job.actor"], attributes["outbox.job.queue"]) == ("charge", "money")
        assert "outbox.event.type" not in attributes

    def test_is_a_span_that_continues_the_emitters_trace_and_is_linked_to_it(
        self, box: Outbox, recorder: Recorder
    ) -> None:
        outbox.handler("order.*", name="billing")(lambda event: None)
        with recorder.span() as emitter:
            event = emit_one(correlation_id="story")
        box.process_pending_events()
        (span,) = recorder.deliveries()
        about = emitter.get_span_context()
        assert (span.name, span.kind) == ("process billing", SpanKind.CONSUMER)
        assert span.parent is not None
        assert (span.parent.span_id, span.parent.trace_id) == (about.span_id, about.trace_id)
        assert [link.context.span_id for link in span.links] == [about.span_id]
        assert dict(span.attributes or {}) == {
            "messaging.system": "outbox",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": "billing",
            "messaging.message.id": str(event.id),
            "messaging.message.conversation_id": "story",
            "outbox.event.type": "order.placed",
            "outbox.aggregate.type": "Order",
            "outbox.attempt": 1,
            "outbox.outcome": "delivered",
        }

    def test_of_an_event_without_a_trace_begins_one_and_ignores_the_workers_current_span(
        self, box: Outbox, recorder: Recorder
    ) -> None:
        outbox.handler("order.*", name="billing")(lambda event: None)
        emit_one(headers={"traceparent": 7})
        emit_one(headers={"traceparent": "nonsense"})
        with recorder.span("the worker's own"):
            box.process_pending_events()
        assert [(span.parent, list(span.links)) for span in recorder.deliveries()] == [(None, [])] * 2

    @pytest.mark.parametrize(
        ("handle", "outcome", "status"),
        [
            (lambda event: None, "delivered", (StatusCode.OK, None)),
            (raises(ValueError("no")), "retry", (StatusCode.ERROR, "ValueError: no")),
            (raises(outbox.Unavailable("away")), "unavailable", (StatusCode.ERROR, "away")),
            (raises(outbox.Reject("never")), "failed", (StatusCode.ERROR, "Reject: never")),
        ],
    )
    def test_has_the_status_of_its_outcome(
        self, box: Outbox, recorder: Recorder, handle: Any, outcome: str, status: Any
    ) -> None:
        outbox.handler("order.*", name="billing")(handle)
        emit_one()
        box.process_pending_events()
        (span,) = recorder.deliveries()
        assert (span.attributes or {})["outbox.outcome"] == outcome
        assert (span.status.status_code, span.status.description) == status
        assert list(span.events) == []

    def test_is_a_span_at_each_attempt(self, box: Outbox, recorder: Recorder) -> None:
        outbox.handler("order.*", name="billing")(raises(ValueError("no")))
        with recorder.span():
            emit_one()
        for _ in range(3):
            box.process_pending_events()
            let_pass(hours=1)
        spans = recorder.deliveries()
        assert [(span.attributes or {})["outbox.attempt"] for span in spans] == [1, 2, 3]
        assert len({span.context.trace_id for span in spans}) == 1

    def test_to_each_destination_is_a_span_of_its_own_and_handlers_run_inside_theirs(
        self, box: Outbox, recorder: Recorder
    ) -> None:
        inside: dict[str, int] = {}
        for name in ("a", "b", "c"):

            def handle(event: Event, name: str = name) -> None:
                inside[name] = trace.get_current_span().get_span_context().span_id

            outbox.handler("order.*", name=name)(handle)
        emit_one()
        box.process_pending_events()
        spans = {span.name.removeprefix("process "): span.context.span_id for span in recorder.deliveries()}
        assert spans == inside
        assert len(set(inside.values())) == 3
        assert not trace.get_current_span().get_span_context().is_valid

    def test_is_the_context_of_the_events_that_its_handler_emits(self, box: Outbox, recorder: Recorder) -> None:
        outbox.handler("order.placed", name="billing")(lambda event: emit_one("invoice.sent"))
        outbox.handler("invoice.sent", name="mail")(lambda event: None)
        with recorder.span() as request:
            emit_one()
        for _ in range(2):
            box.process_pending_events()
        billing, mail = recorder.deliveries()
        assert mail.parent is not None
        assert mail.parent.span_id == billing.context.span_id
        assert mail.context.trace_id == request.get_span_context().trace_id

    def test_by_an_applications_own_destination_can_be_made_the_current_span(
        self, box: Outbox, recorder: Recorder
    ) -> None:
        seen = []

        class Own:
            name = "own"
            events = ("*",)

            def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
                for event in events:
                    with tracing.inside(event):
                        seen.append(trace.get_current_span().get_span_context().span_id)
                    yield event, outbox.Delivered()

        outbox.add_destination(Own())
        emit(2)
        box.process_pending_events()
        spans = recorder.deliveries()
        assert [span.context.span_id for span in spans] == seen
        assert [(span.name, span.kind) for span in spans] == [("send own", SpanKind.PRODUCER)] * 2

    def test_without_an_outcome_ends_its_span(self, box: Outbox, recorder: Recorder) -> None:
        class Silent:
            name = "silent"
            events = ("*",)

            def deliver(self, events: Iterable[Event], lease: Lease) -> list[tuple[Event, Outcome]]:
                self.taken = list(events)
                return []

        outbox.add_destination(Silent())
        emit(2)
        box.process_pending_events()
        assert [span.status.description for span in recorder.deliveries()] == [
            "the destination returned no outcome"
        ] * 2

    def test_succeeds_although_tracing_raises(
        self, box: Outbox, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Broken(Sampler):
            def should_sample(self, *args: Any, **kwargs: Any) -> Any:
                raise RuntimeError("broken")

            def get_description(self) -> str:
                return "broken"

        outbox.handler("order.*", name="billing")(lambda event: None)
        event = emit_one()
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(sampler=Broken()))
        box.process_pending_events()
        assert stored(event).status == "delivered"


class TestAWebhook:
    def test_carries_the_context_of_its_delivery_and_the_same_body_at_each_attempt(
        self, configure: Configure, recorder: Recorder
    ) -> None:
        box = configure(backoff_base_seconds=0)
        with Receiver(answers(500), answers()) as receiver, closing(outbox.Webhook("hook", receiver.url)) as webhook:
            outbox.add_destination(webhook)
            with recorder.span() as emitter:
                emit_one()
            for _ in range(2):
                box.process_pending_events()
        spans = recorder.deliveries()
        assert [(span.name, span.kind) for span in spans] == [("send hook", SpanKind.PRODUCER)] * 2
        assert [request.headers["traceparent"] for request in receiver.requests] == [
            traceparent(each) for each in spans
        ]
        assert len({request.body for request in receiver.requests}) == 1
        assert traceparent(emitter).encode() in receiver.requests[0].body

    def test_carries_the_stored_context_without_an_sdk(self, box: Outbox) -> None:
        given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        with Receiver() as receiver, closing(outbox.Webhook("hook", receiver.url)) as webhook:
            outbox.add_destination(webhook)
            emit_one(headers={"traceparent": given})
            box.process_pending_events()
        assert receiver.only.headers["traceparent"] == given


def test_a_consumer_continues_the_trace(
    box: Outbox, stream: Stream, make_consumer: MakeConsumer, recorder: Recorder
) -> None:
    inside = []
    outbox.handler("note.*", name="notes")(lambda event: inside.append(trace.get_current_span()))
    with recorder.span() as emitter:
        stream.add(headers=f'{{"traceparent": "{traceparent(emitter)}"}}')
    consume(make_consumer(), until=lambda: stream.left() == 0)
    (span,) = recorder.deliveries()
    assert (span.name, span.kind) == ("process notes", SpanKind.CONSUMER)
    assert span.parent is not None
    assert span.parent.span_id == emitter.get_span_context().span_id
    assert [each.get_span_context().span_id for each in inside] == [span.context.span_id]


# Without it

DELIVER = """
import sys, outbox
outbox.create_tables()
outbox.handler("*", name="h")(lambda event: None)
with outbox.current().database.atomic():
    event = outbox.emit("Order", 1, "order.placed")
assert outbox.OutboxEvent.get_by_id(event.id).status == "delivered"
"""


def test_a_process_that_does_not_use_opentelemetry_imports_nothing_of_it(sqlite_url: str) -> None:
    code = DELIVER + "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    assert run_python(code, database_url=sqlite_url, dispatch="inline") == "[]\n"


def test_without_an_sdk_nothing_is_stored_and_nothing_traced(sqlite_url: str) -> None:
    code = """
from opentelemetry import trace
with trace.get_tracer("app").start_as_current_span("request"):
""" + "".join(f"    {line}\n" for line in DELIVER.splitlines())
    code += "print(event.headers, outbox.telemetry.tracing.tracer(), 'opentelemetry.sdk' in sys.modules)"
    assert run_python(code, database_url=sqlite_url, dispatch="inline") == "{} None False\n"
