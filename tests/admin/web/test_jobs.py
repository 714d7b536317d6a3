"""What the dashboard shows of jobs."""

from datetime import timedelta
from typing import Any

import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.core import Outbox
from outbox.storage.models import DELIVERED, FAILED, PENDING, OutboxEvent
from tests.admin.web.browser import Browser, Document, form_to
from tests.admin.web.client import Client
from tests.support.jobs import declare, enqueued, send, send_opaque, send_to_nobody
from tests.support.table import change, emit_one, stored


def rows(page: Document) -> list[str]:
    """The ids on a list, in its order."""
    return [
        attributes["value"]
        for tag, attributes in page.tags
        if tag == "input" and attributes.get("type") == "checkbox" and attributes.get("name") == "id"
    ]


def ids(*events: OutboxEvent) -> list[str]:
    return [str(event.id) for event in events]


def end(*events: OutboxEvent, status: str = FAILED) -> None:
    change(*events, status=status, next_attempt_at=None)


class TestTheList:
    def test_shows_jobs_as_jobs(self, browser: Browser, charge: Any) -> None:
        send(charge, 42, kwargs={"currency": "EUR", "api_key": "sk-123"}, delay=timedelta(days=3))
        page = browser.get("/events")
        assert 'job charge 42, currency="EUR", api_key="•••" queue money' in page.text
        assert "due in 3 d" in page.text or "due in 2 d" in page.text
        assert "sk-123" not in page.text

    def test_is_filtered_by_kind_and_actor(self, browser: Browser, charge: Any) -> None:
        event, job, other = emit_one("charge"), send(charge, 1), send(declare("remind"))
        assert rows(browser.get("/events")) == ids(other, job, event)
        assert "3 events and jobs" in browser.get("/events").text
        assert rows(browser.get("/events?kind=job")) == ids(other, job)
        assert rows(browser.get("/events?kind=event")) == ids(event)
        assert rows(browser.get("/events?actor=charge")) == ids(job)
        assert rows(browser.get("/events?type=charge")) == ids(event)

    def test_offers_actors_apart_from_types(self, client: Client, charge: Any) -> None:
        send(charge, 1)
        emit_one()
        html = client.get("/events").text
        assert '<datalist id="types"><option value="order.placed"></option></datalist>' in html
        assert '<datalist id="actors"><option value="charge"></option></datalist>' in html

    @pytest.mark.parametrize("query", ["kind=mail", "kind=event&actor=a", "type=t&actor=a", "type=t&kind=job"])
    def test_refuses_filters_that_exclude_each_other(self, browser: Browser, query: str) -> None:
        assert "Invalid parameter" in browser.get(f"/events?{query}", expect=400).text

    def test_of_jobs_speaks_of_jobs(self, browser: Browser, charge: Any) -> None:
        assert "No jobs match" in browser.get("/events?kind=job").text
        send(charge, 1)
        page = browser.get("/events?kind=job")
        assert "1 job matches" in page.text
        assert "1 event" not in page.text

    def test_is_searched_by_key_and_message_id(self, browser: Browser, charge: Any) -> None:
        job = send(charge, 1, idempotency_key="order-1")
        change(job, aggregate_id="a-message")
        assert rows(browser.get("/events?q=order-1")) == ids(job)
        assert rows(browser.get("/events?q=a-message")) == ids(job)

    def test_hides_the_content_of_an_opaque_message(self, client: Client, charge: Any) -> None:
        job = send_opaque(charge, "sk-123")
        for path in ("/events", f"/events/{job.id}"):
            html = client.get(path).text
            assert "opaque: only the application" in html
            assert job.payload["outbox_base64"] not in html


class TestThePageOfAJob:
    def test_shows_actor_arguments_queue_due_time_message_id_and_key(
        self, browser: Browser, client: Client, charge: Any
    ) -> None:
        job = send(charge, 42, kwargs={"password": "hunter2"}, idempotency_key="order-1", max_retries=7)
        page = browser.get(f"/events/{job.id}")
        for told in (
            "job charge queue money",
            "The job is due now.",
            "Sent now",
            "Arguments Copy [ 42 ]",
            '{ "password": "•••" }',
            '"max_retries": 7',
            "Actor charge",
            "Queue money",
            f"Message id {job.id}",
            "Due now",
            "Idempotency key order-1",
        ):
            assert told in page.text
        for told in ("hunter2", "Aggregate", "Payload", "job:order-1", "destinations that want it"):
            assert told not in client.get(f"/events/{job.id}").text.split("<main", 1)[1]

    def test_of_a_job_without_a_key_says_so(self, browser: Browser, charge: Any) -> None:
        assert "Idempotency key none" in browser.get(f"/events/{send(charge).id}").text

    def test_links_to_the_jobs_of_its_actor(self, browser: Browser, charge: Any) -> None:
        job = send(charge, 1)
        emit_one("charge")
        actor = browser.get(browser.get(f"/events/{job.id}").links["charge"])
        (waiting,) = [href for text, href in actor.links.items() if text.startswith("waiting")]
        assert rows(browser.get(waiting)) == ids(job)

    def test_of_a_delivered_job_offers_no_replay_to_a_destination(
        self, box: Outbox, browser: Browser, charge: Any
    ) -> None:
        outbox.handler("*", name="webhook")(lambda event: None)
        job = send(charge, 1)
        box.process_pending_events()
        page = browser.get(f"/events/{job.id}")
        assert "Enqueued now" in page.text
        assert "Replay to" not in page.text
        confirmed = browser.get(f"/confirm?action=replay&scope=selected&from=event&id={job.id}")
        assert "Replay 1 job?" in confirmed.text
        assert "Each job's message is enqueued again" in confirmed.text
        assert "webhook" not in confirmed.text

    def test_a_replay_to_a_destination_that_is_asked_for_all_the_same_changes_no_job(
        self, box: Outbox, browser: Browser, charge: Any, stub_broker: StubBroker
    ) -> None:
        outbox.handler("*", name="webhook")(lambda event: None)
        job = send(charge, 1)
        box.process_pending_events()
        page = browser.get(f"/confirm?action=replay&scope=selected&to=webhook&id={job.id}")
        assert "No jobs to replay" in page.text
        assert (stored(job).status, len(enqueued(stub_broker))) == (DELIVERED, 1)

    def test_of_a_job_that_waits_for_a_worker_says_what_to_do(
        self, box: Outbox, browser: Browser, stub_broker: StubBroker
    ) -> None:
        page = browser.get(f"/events/{send_to_nobody(box, stub_broker, 'gone').id}")
        assert "Broker Name State Attempts Next not found yet waiting" in page.text.replace(
            "State of this job at each destination ", ""
        )
        assert "waits for a worker that has 'gone'" in page.text
        assert "First put off now" in page.text


class TestActions:
    def test_on_jobs_say_what_happens_to_jobs(self, browser: Browser, charge: Any) -> None:
        job = send(charge, 1)
        end(job)
        page = browser.get("/confirm?action=retry&scope=all&actor=charge")
        assert "Retry 1 job?" in page.text
        assert "Each job is due at once" in page.text
        assert "Each event" not in page.text
        assert "1 job was queued for retry." in browser.submit(form_to(page, "/act")).text
        assert stored(job).status == PENDING

    def test_on_events_and_jobs_say_what_happens_to_both(self, browser: Browser, charge: Any) -> None:
        job, event = send(charge, 1), emit_one()
        end(job, event)
        for query in ("scope=all", f"scope=selected&id={job.id}&id={event.id}"):
            page = browser.get(f"/confirm?action=retry&{query}")
            assert "Retry 2 events and jobs?" in page.text
            assert "Each event is due at once" in page.text
            assert "Each job is due at once" in page.text


def test_the_overview_says_how_many_are_jobs(browser: Browser, charge: Any) -> None:
    emit_one()
    assert "1 event" not in browser.get("/").text
    send(charge, 1)
    send(charge, 2)
    page = browser.get("/")
    assert "pending 3" in page.text
    assert "1 event and 2 jobs" in page.text


def test_arguments_are_redacted_by_the_name_of_the_actor(box: Outbox, client: Client, charge: Any) -> None:
    def hide_first(actor: str, message: Any) -> Any:
        return message | {"args": [actor, *message["args"][1:]]}

    outbox.redact("charge")(hide_first)
    job = send(charge, "hush", "shown")
    for path in (f"/events/{job.id}", "/events"):
        html = client.get(path).text
        assert "hush" not in html
        assert "shown" in html


def test_a_redaction_of_a_job_that_fails_shows_no_arguments(box: Outbox, client: Client, charge: Any) -> None:
    outbox.redact("*")(lambda actor, message: 1 / 0)
    job = send(charge, "hush")
    for path in (f"/events/{job.id}", "/events"):
        html = client.get(path).text
        assert "hush" not in html
        assert "not shown: the redaction of charge raised ZeroDivisionError" in html
