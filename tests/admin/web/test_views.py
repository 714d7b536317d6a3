"""The pages of one destination and of one actor, of what is due later, and of streams; and the charts."""

import json
import shlex
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from starlette.routing import Route

import outbox
from outbox.admin.scheduled import read_scheduled
from outbox.admin.web import make_app
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.attempts import NEWEST_READ, Tried, add_attempts
from outbox.storage.operator_models import Process
from tests.admin.web.browser import Browser, Document, form_to
from tests.admin.web.client import Client, anybody
from tests.admin.web.sample import delivered, failed, now, waiting
from tests.support.jobs import send
from tests.support.table import change, emit, emit_one, other_worker


def report(box: Outbox, id: str = "1", **details: Any) -> None:
    """Store the report of another process."""
    Process.bind(box.database)
    times = {"started_at": now() - timedelta(hours=1), "seen_at": now()}
    Process.create(id=id, kind="worker", host="web", pid=1, details={"publish_seconds": 3600, **details}, **times)


def rows(page: Document) -> list[str]:
    """The ids of the events that a list shows, in its order."""
    return [
        attributes["title"] for tag, attributes in page.tags if tag == "a" and len(attributes.get("title", "")) == 36
    ]


class TestADestination:
    def test_shows_its_state_its_rates_and_what_it_has_refused(self, box: Outbox, browser: Browser) -> None:
        def refuse(event: outbox.Event) -> None:
            raise outbox.Reject("no such customer")

        outbox.handler("order.*", name="crm")(refuse)
        outbox.handler("*", name="other")(lambda event: None)
        other_worker(box, crm="order.*", other="*")
        emit(2)
        box.process_pending_events()
        box.reporter.report_now()
        breaker = {"open": True, "trips": 3, "seconds": 41.0, "open_seconds": 840.0, "error": "HTTP 503"}
        report(box, destinations={"crm": {"kind": "Webhook"}}, breakers={"crm": breaker})
        page = browser.get("/destination", name="crm")
        for text in ("crm Webhook", "unavailable", "open for 14 min", "in 4", "HTTP 503", "success 0 %", "order.*"):
            assert text in page.text
        assert page.text.count("no such customer") == 2
        assert "success 100 %" in browser.get("/destination", name="other").text

    def test_counts_what_waits_for_it(self, box: Outbox, browser: Browser) -> None:
        waiting()
        other_worker(box, search="*")
        assert "waiting 1 tried, and due again" in browser.get("/destination", name="search").text

    def test_is_controlled_from_its_page_and_shown_again(self, box: Outbox, browser: Browser) -> None:
        other_worker(box, crm="*")
        page = browser.get("/destination", name="crm")
        (pausing,) = [form for form in page.forms if ("action", "pause") in form.buttons]
        after = browser.submit(pausing, ("action", "pause"))
        assert "It is paused." in after.text
        assert "paused for" in after.text
        (resuming,) = [form for form in after.forms if ("action", "resume") in form.buttons]
        assert "It is resumed" in browser.submit(resuming, ("action", "resume")).text
        assert not any(("action", "resume") in form.buttons for form in browser.get("/destination", name="crm").forms)

    def test_that_nobody_knows_is_not_found(self, browser: Browser) -> None:
        assert "“typo”" in browser.get("/destination", name="typo", expect=404).text

    def test_lists_only_attempts_among_the_newest_of_all(self, box: Outbox, browser: Browser) -> None:
        """So the page reads a bounded number of attempts, however rare those of the destination are."""
        other_worker(box, rare="*")
        moment = now()
        for name, count, age in (("rare", 1, 10), ("busy", NEWEST_READ, 5)):
            tried = [
                (str(emit_one().id), Tried(name, moment - timedelta(seconds=age), 0.1, "failed", 500, name))
                for _ in range(1)
            ]
            for number in range(0, count, 20):
                id = tried[0][0] if count == 1 else str(outbox.emit("A", number, "busy").id)
                size = min(20, count)
                each = Tried(
                    name, moment - timedelta(seconds=age) + timedelta(microseconds=number), 0.1, "failed", 1, name
                )
                add_attempts(box.dialect, [(id, each)] * size, "w")
        assert "None among the latest attempts" in browser.get("/destination", name="rare").text


def test_an_actor_has_a_page_with_its_jobs(box: Outbox, browser: Browser, charge: Any) -> None:
    job, bad = send(charge, 1), send(charge, 2)
    change(bad, status="failed", next_attempt_at=None, error_message="no broker")
    emit_one("charge")
    box.process_pending_events()
    box.reporter.report_now()
    page = browser.get("/actor", name="charge")
    for text in ("charge actor", "sent 2", "waiting 0", "failed 1", "no broker"):
        assert text in page.text
    assert rows(page) == [str(bad.id)]
    assert job.id != bad.id
    assert "Retry 1 job?" in browser.submit(form_to(page, "/confirm"), ("action", "retry")).text


class TestScheduled:
    def test_lists_what_is_due_later_the_next_first(self, browser: Browser) -> None:
        later = emit_one(deliver_after=timedelta(hours=2))
        sooner = emit_one(deliver_after=timedelta(hours=1))
        retried = waiting()
        emit_one()
        delivered()
        assert rows(browser.get("/scheduled")) == [str(sooner.id), str(later.id)]
        assert rows(browser.get("/scheduled", which="retries")) == [str(retried.id)]
        browser.get("/scheduled", which="nonsense", expect=400)

    def test_reads_a_limited_number_of_rows(
        self, box: Outbox, browser: Browser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for minutes in range(4):
            waiting(60 * (minutes + 1))
        hidden = emit_one(deliver_after=timedelta(hours=1))
        found = read_scheduled(box.dialect, box.dialect.now(), untried=True, window=4)
        assert found.events == []
        assert found.read_until is not None
        monkeypatch.setattr("outbox.admin.scheduled.WINDOW", 4)
        page = browser.get("/scheduled")
        assert "None found so far" in page.text
        assert "Only what is due before" in page.text
        found = read_scheduled(box.dialect, box.dialect.now(), untried=True, window=5)
        assert ([event.id for event in found.events], found.read_until) == ([hidden.id], None)


def test_streams_are_listed_with_the_newest_report_of_each_group(box: Outbox, browser: Browser) -> None:
    assert "No consumers" in browser.get("/streams").text
    common = {"stream": "orders", "dead_letter": "orders.dead", "pending": 1, "processed": 10, "parked": 2}
    report(box, "1", stream={**common, "group": "billing", "behind": 5})
    report(box, "2", stream={**common, "group": "billing", "behind": 4})
    report(box, "3", stream={**common, "group": "search", "behind": 1_700})
    page = browser.get("/streams").text
    assert page.index("search") < page.index("billing")
    assert "orders billing 4 1 20 4 2" in page
    assert "1,700" in page


class TestTheCurlCommand:
    def command(self, page: Document) -> str:
        return page.text.partition("curl command, to reproduce")[2]

    def test_reproduces_the_request_of_a_webhook_without_secrets(self, box: Outbox, browser: Browser) -> None:
        report(box, destinations={"runner": {"kind": "Webhook"}})
        event = failed(payload={"name": "O'Hara", "api_key": "hush"}, ordering_key="k")
        command = self.command(browser.get(f"/events/{event.id}"))
        assert 'curl --request POST "$URL"' in command
        assert "hush" not in command
        script = command[command.index("curl --request") : command.index("Headers")].replace("\\", "")
        words = shlex.split(script)
        body = json.loads(words[words.index("--data-raw") + 1])
        assert body["data"]["name"] == "O'Hara"
        assert (body["id"], body["seq"]) == (str(event.id), event.seq)
        assert f"webhook-id: {event.id}" in words

    def test_is_not_shown_without_a_webhook_or_without_the_permission(self, box: Outbox, browser: Browser) -> None:
        event = failed()
        report(box, destinations={"runner": {"kind": "Handler"}})
        assert "curl" not in browser.get(f"/events/{event.id}").text
        report(box, "2", destinations={"runner": {"kind": "Webhook"}})
        app = make_app(box, authenticate=anybody, authorize=lambda connection, user: ["view"])
        assert "curl" not in Browser(Client(app)).get(f"/events/{event.id}").text
        assert "curl" in browser.get(f"/events/{event.id}").text


NO_PAGES = ("/metrics", "/healthz", "/readyz")


def test_every_page_says_what_to_do_if_the_tables_are_missing(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "new.sqlite3").close()
    (tmp_path / "new.sqlite3").touch()
    app = make_app(Outbox(Settings(database_url=f"sqlite:///{tmp_path}/new.sqlite3")), authenticate=anybody)
    for route in app.routes:
        if isinstance(route, Route) and "GET" in (route.methods or ()) and route.path not in NO_PAGES:
            given = {"action": "retry", "scope": "all", "name": "x"}
            page = Browser(Client(app)).get(route.path.replace("{id}", str(uuid4())), given, expect=503)
            assert "has no tables" in page.text, route.path
            assert "outbox init" in page.text


class TestCharts:
    def test_a_bar_leads_to_the_events_that_ended_in_its_time(self, box: Outbox, browser: Browser) -> None:
        outbox.handler("*", name="all")(lambda event: None)
        event = emit_one()
        box.process_pending_events()
        box.reporter.report_now()
        for over in ("1h", "24h", "7d"):
            page = browser.get("/", range=over)
            bars = [
                attributes["href"]
                for tag, attributes in page.tags
                if tag == "a" and "ended_since" in attributes.get("href", "") and "tabindex" in attributes
            ]
            assert len(bars) in (60, 96, 84)
            listed = [rows(browser.get(bar)) for bar in bars[-2:]]
            assert [str(event.id)] in listed
            assert rows(browser.get(bars[0])) == []

    def test_of_a_type_its_bars_have_only_events_of_the_type(self, box: Outbox, browser: Browser) -> None:
        outbox.handler("*", name="all")(lambda event: None)
        emit_one("a.b"), emit_one("c.d")
        box.process_pending_events()
        box.reporter.report_now()
        page = browser.get("/", of="type:a.b")
        assert "Last hour: type a.b" in page.text
        href = next(attributes["href"] for tag, attributes in page.tags if "tabindex" in attributes and tag == "a")
        assert parse_qs(urlsplit(href).query)["type"] == ["a.b"]
        assert "1 delivered" in page.text

    @pytest.mark.parametrize("given", [{"range": "2h"}, {"of": "tenant:x"}, {"of": "type:"}, {"of": "x"}])
    def test_an_unknown_range_or_subject_is_refused(self, browser: Browser, given: dict[str, str]) -> None:
        (name,) = given
        assert f"“{name}” must be" in browser.get("/", given, expect=400).text

    def test_events_are_found_by_the_time_at_which_they_ended(self, browser: Browser) -> None:
        early, late = failed(), delivered()
        emit_one()
        moment = now()
        change(early, updated_at=moment + timedelta(hours=1))
        change(late, delivered_at=moment + timedelta(hours=2), updated_at=moment)
        edges = [(moment + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%S") for minutes in (30, 90, 150)]
        assert rows(browser.get("/events", ended_since=edges[0], ended_until=edges[1])) == [str(early.id)]
        assert rows(browser.get("/events", ended_since=edges[1], ended_until=edges[2])) == [str(late.id)]
        assert rows(browser.get("/events", ended_since=edges[2])) == []


def test_what_is_unavailable_is_seen_on_the_page_of_controls_and_its_attempts_in_its_chart(
    box: Outbox, browser: Browser
) -> None:
    def refuse(event: outbox.Event) -> None:
        raise outbox.Unavailable("closed")

    outbox.handler("order.*", name="crm")(refuse)
    outbox.handler("*", name="mail")(lambda event: None)
    other_worker(box, crm="order.*", mail="*")
    emit(2)
    box.process_pending_events()
    box.reporter.report_now()
    breaker = {"open": True, "trips": 1, "seconds": 41.0, "open_seconds": 8.0, "error": "closed"}
    report(box, destinations={"crm": {"kind": "Handler"}}, breakers={"crm": breaker})
    text = browser.get("/control").text
    assert "crm order.* unavailable none It is back" in text
    assert "mail * ok none Pause, throttle or recover" in text
    page = browser.get("/destination", name="crm")
    assert ("rect", "retried") in [(tag, attributes.get("class")) for tag, attributes in page.tags]
    assert "2 to be repeated" in page.text
