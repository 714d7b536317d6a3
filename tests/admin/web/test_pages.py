"""What each page of the dashboard shows."""

import json
from datetime import timedelta
from typing import Any

import pytest

import outbox
from outbox.admin import queries
from outbox.admin.web import make_app
from outbox.core import Outbox
from outbox.storage.ids import first_uuid7_of
from outbox.storage.operator_models import Minute, Process
from outbox.telemetry.process_reports import WORKER
from tests.admin.web.browser import Browser, Document, browser_with
from tests.admin.web.client import Client, anybody
from tests.admin.web.sample import delivered, failed, many_delivered, now, sending, waiting
from tests.conftest import Configure
from tests.support.recorded_destinations import let_records_age
from tests.support.table import change, emit_one, on_postgres, other_worker, statements


def tell(box: Outbox, **changes: Any) -> None:
    """A process that is there."""
    details = {"publish_seconds": 10, "destinations": {}, "breakers": {}, "version": "1"} | changes.pop("details", {})
    row = {"id": "1", "kind": WORKER, "host": "app-1", "pid": 7, "started_at": now() - timedelta(hours=2)}
    Process.bind(box.database)
    Process.create(**row | {"seen_at": now(), "details": details} | changes)


def rows(page: Document) -> list[str]:
    """The ids on a list of events, in its order."""
    return [
        attributes["value"]
        for tag, attributes in page.tags
        if tag == "input" and attributes.get("type") == "checkbox" and attributes.get("name") == "id"
    ]


def ids(*events: outbox.OutboxEvent) -> list[str]:
    return [str(event.id) for event in events]


# Overview


def test_the_overview_counts(browser: Browser) -> None:
    failed(), failed(), delivered(), waiting(), sending()
    page = browser.get("/")
    for told in ("failed 2", "pending 1", "sending 1", "delivered 1"):
        assert told in page.text


def test_the_overview_shows_why_events_failed_and_links_to_them(browser: Browser) -> None:
    one, other = failed("runner: HTTP 500"), failed("runner: HTTP 500")
    third = failed("mailer: 100 % \\ of_it", destination="mailer")
    page = browser.get("/")
    assert "2 runner HTTP 500" in page.text
    assert rows(browser.get(page.links["2"])) == ids(other, one)
    assert rows(browser.get(page.links["1"])) == ids(third)


def test_without_a_worker_the_overview_says_so_and_what_to_do(box: Outbox, browser: Browser) -> None:
    emit_one()
    tell(box, seen_at=now() - timedelta(minutes=5))
    page = browser.get("/")
    assert "No worker is running, 1 event waits No worker is running: nothing is delivered." in page.text
    assert "outbox worker your.module" in page.text
    assert "outbox scheduler" in page.text


def test_with_worker_and_scheduler_all_is_well(box: Outbox, browser: Browser) -> None:
    tell(box)
    tell(box, id="2", kind="scheduler")
    assert "All is well" in browser.get("/").text


def test_a_worker_that_can_not_reach_its_broker_is_shown_with_the_error(box: Outbox, browser: Browser) -> None:
    tell(box, details={"broker_error": "ConnectionError: refused"})
    tell(box, id="2")
    page = browser.get("/")
    assert "The worker app-1:7 can't reach its broker" in page.text
    assert "ConnectionError: refused" in page.text


def test_a_destination_that_no_running_worker_has_is_shown_with_the_command(box: Outbox, browser: Browser) -> None:
    tell(box)
    tell(box, id="2", kind="scheduler")
    other_worker(box, crm="*")
    assert "All is well" in browser.get("/").text
    let_records_age(box, minutes=4)
    page = browser.get("/")
    assert "No running worker has the destination crm" in page.text
    assert "outbox retire crm" in page.text
    assert "All is well" not in page.text


def test_a_worker_that_no_longer_reports_does_not_count(box: Outbox, browser: Browser) -> None:
    tell(box, seen_at=now() - timedelta(minutes=5))
    page = browser.get("/")
    assert "No worker is running" in page.text
    assert "silent" in page.text


def test_a_destination_with_an_open_circuit_breaker_comes_first(box: Outbox, browser: Browser) -> None:
    breakers = {"billing": {"open": True, "trips": 3, "seconds": 20.0, "error": "refused"}}
    tell(box, details={"destinations": {"a": {"kind": "X"}, "billing": {"kind": "Webhook"}}, "breakers": breakers})
    page = browser.get("/")
    assert "billing is unavailable" in page.text
    assert "billing Webhook unavailable refused" in page.text
    assert page.text.index("billing Webhook") < page.text.index("a X ok")


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (
            lambda: change(emit_one(), next_attempt_at=now() - timedelta(minutes=3)),
            "1 event is due, the oldest for 3 min",
        ),
        (lambda: sending(seconds=-500), "1 lease expired up to"),
    ],
)
def test_late_events_are_shown(box: Outbox, browser: Browser, state: Any, told: str) -> None:
    tell(box)
    state()
    assert told in browser.get("/").text


def test_workers_with_different_destinations_are_reported(box: Outbox, browser: Browser) -> None:
    tell(box, details={"destinations": {"a": {}, "b": {}}})
    tell(box, id="2", pid=8, details={"destinations": {"a": {}}})
    assert "The worker app-1:8 does not have b" in browser.get("/").text


def test_the_chart_has_a_bar_for_each_minute_and_says_in_words_what_it_shows(box: Outbox, client: Client) -> None:
    minute = now().replace(second=0, microsecond=0)
    Minute.bind(box.database)
    for name, labels, value in (
        ("delivered", "", 1234),
        ("failed", "", 1),
        ("latency_bucket", json.dumps({"le": "0.025"}, separators=(",", ":")), 10),
    ):
        Minute.create(minute=minute, name=name, labels=labels, value=value)
    html = client.get("/").text
    assert html.count('class="hover"') == 60
    assert html.count('class="delivered" x=') == html.count('class="failed" x=') == 1
    assert "1,234 delivered, 1 failed, 0 retried. Busiest 1 min:" in html
    assert '<span>1,500</span><span class="unit">in 1 min</span>' in html
    assert "half</dt><dd>≤ 25 ms" in html


def test_the_chart_says_when_there_is_nothing_to_draw(browser: Browser) -> None:
    page = browser.get("/")
    assert "Nothing was emitted or delivered." in page.text
    assert "svg" not in [tag for tag, _ in page.tags]


# Events


def test_events_are_listed_newest_first_with_their_error(browser: Browser) -> None:
    first, second = failed("runner: boom", tenant_id="acme"), delivered()
    page = browser.get("/events")
    assert rows(page) == ids(second, first)
    assert "runner: boom" in page.text
    assert "acme" in page.text
    assert "2 events" in page.text


@pytest.mark.parametrize(
    "parameters",
    [
        {"status": "failed"},
        {"type": "user.created"},
        {"aggregate": "Order:meant"},
        {"aggregate": ":meant"},
        {"tenant": "acme"},
        {"destination": "billing"},
        {"error": "100%_\\"},
        {"key": "k-1"},
        {"correlation": "c-1"},
        {"since": "2100-01-01T00:00", "until": "2100-01-02"},
        {"since": "2100-01-01T01:00+01:00"},
    ],
)
def test_each_filter_finds_what_is_meant_and_nothing_else(browser: Browser, parameters: dict[str, str]) -> None:
    meant = failed(
        "billing: 100%_\\ wrong",
        destination="billing",
        event_type="user.created",
        aggregate_id="meant",
        tenant_id="acme",
        idempotency_key="k-1",
        correlation_id="c-1",
    )
    if "since" in parameters:
        # Ids and times of creation go together; this one was made in the future.
        future = outbox.OutboxEvent.get_by_id(meant.id).created_at.replace(year=2100, month=1, day=1, hour=12)
        change(meant, created_at=future)
        moved = first_uuid7_of(future)
        outbox.OutboxEvent.update(id=moved).where(outbox.OutboxEvent.id == meant.id).execute()
        meant.id = moved
    delivered(), waiting()
    page = browser.get("/events", parameters)
    assert rows(page) == ids(meant)
    assert "1 event matches" in page.text


def test_a_filter_stays_in_the_form_and_in_the_links(browser: Browser) -> None:
    failed(tenant_id="acme & söhne")
    page = browser.get("/events", tenant="acme & söhne", status="failed")
    (form,) = [form for form in page.forms if ("tenant", "acme & söhne") in form.fields and form.action == "/events"]
    assert ("status", "failed") in form.fields
    assert rows(browser.get(page.links["delivered"])) == []
    assert len(rows(browser.get(page.links["failed"]))) == 1


def test_older_events_are_a_page_away(browser: Browser) -> None:
    events = many_delivered(2 * queries.PAGE + 1)
    page, seen = browser.get("/events"), []
    for _ in range(2):
        seen += rows(page)
        page = browser.get(page.links["Older events"])
    seen += rows(page)
    assert seen == ids(*sorted(events, key=lambda event: event.id, reverse=True))
    assert "Older events" not in page.links
    assert "Show the newest" in page.links


def test_a_search_says_how_far_back_it_went_and_can_continue(box: Outbox) -> None:
    browser = browser_with(box, scan_limits=queries.ScanLimits(window=10))
    meant = delivered(tenant_id="rare")
    change(meant, error_message="rare")
    many_delivered(15)
    page = browser.get("/events", error="rare")
    assert rows(page) == []
    assert "Older events were not searched" in page.text
    assert "No events match" not in page.text
    assert rows(browser.get(page.links["Search further back"])) == ids(meant)


@pytest.mark.parametrize("text", ["k-1", " meant ", "Order:meant"])
def test_the_search_finds_keys_and_aggregates(browser: Browser, text: str) -> None:
    meant = delivered(aggregate_id="meant", idempotency_key="k-1")
    delivered()
    page = browser.get("/events", q=text)
    assert rows(page) == ids(meant)
    assert "1 match for" in page.text


def test_the_search_for_an_id_leads_to_the_event(browser: Browser) -> None:
    event = delivered(tenant_id="acme")
    for form in (str(event.id), event.id.hex.upper(), f" {event.id} "):
        assert "Details Id" in browser.get("/events", q=form).text


def test_empty_pages_explain_themselves(browser: Browser) -> None:
    assert "No events yet" in browser.get("/events").text
    assert "No events match" in browser.get("/events", tenant="x").text
    assert "No events found" in browser.get("/events", q="x").text
    assert "No actions yet" in browser.get("/audit").text


# One event


def test_the_page_of_an_event_shows_all_about_it(browser: Browser) -> None:
    event = failed("runner: HTTP 500", tenant_id="acme", correlation_id="c-1", payload={"total": 42})
    page = browser.get(f"/events/{event.id}")
    for told in (
        "is not tried again automatically",
        "Last error runner: HTTP 500",
        "Emitted",
        "Failed, after 5 of 5 attempts",
        "runner failed HTTP 500 5 —",
        "bus delivered 1 —",
        '"total": 42',
        f"Id {event.id}",
        "Tenant acme",
        "Correlation id c-1",
    ):
        assert told in page.text


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (delivered, "Delivered to all destinations."),
        (waiting, "search waiting refused 2 in "),
        (sending, "A worker is delivering the event"),
        (emit_one, "No attempt yet."),
    ],
)
def test_an_event_in_any_state_shows_what_happens_next(browser: Browser, make: Any, told: str) -> None:
    assert told in browser.get(f"/events/{make().id}").text


def test_values_of_secret_keys_are_not_shown(client: Client) -> None:
    secrets = {"password": "hush-1", "user": {"API-Key": "hush-2", "x": [{"refreshToken": {"v": "hush-3"}}]}}
    event = delivered(payload=secrets | {"name": "Ada"}, headers={"Authorization": "hush-4", "traceparent": "00-1"})
    html = client.get(f"/events/{event.id}").text
    assert "hush" not in html
    assert "Ada" in html
    assert "traceparent" in html
    assert "refreshToken" in html


def test_which_keys_are_masked_is_a_setting(configure: Configure) -> None:
    client = Client(make_app(configure(masked_keys="iban"), authenticate=anybody))
    event = delivered(payload={"IBAN": "hush", "password": "shown"})
    html = client.get(f"/events/{event.id}").text
    assert "hush" not in html
    assert "shown" in html


def test_a_large_payload_is_cut(client: Client) -> None:
    event = delivered(payload={"x": "y" * 200_000})
    html = client.get(f"/events/{event.id}").text
    assert len(html) < 150_000
    assert "more characters" in html


@pytest.mark.parametrize(
    ("id", "title"),
    [
        ("00000000-0000-7000-8000-000000000000", "Event not found"),
        ("x", "Not an event id"),
        ("%00", "Not an event id"),
        ("..%2f..", "Page not found"),
        ("é", "Not an event id"),
    ],
)
def test_an_event_that_does_not_exist_is_not_found(browser: Browser, id: str, title: str) -> None:
    assert title in browser.get(f"/events/{id}", expect=404).text


# In general


def test_the_passwords_of_servers_are_on_no_page(configure: Configure, database: Any) -> None:
    box = configure(
        database_url="postgresql://u:hush-1@h/d",
        redis_url="redis://:hush-2@127.0.0.1:1/0",
        webhook_url="https://u:hush-3@example.com/hush-4",
        webhook_secret="whsec_hush" + "A" * 40,
        dashboard_user="ada",
        dashboard_password="hush-6",
    )
    client = Client(make_app(box, authenticate=anybody))
    event = failed()
    for path in ("/", "/events", f"/events/{event.id}", "/audit", "/confirm?action=retry&scope=all", "/nowhere"):
        assert "hush" not in client.get(path).text


def test_missing_tables_are_explained(configure: Configure, browser: Browser) -> None:
    box = outbox.current()
    with box.dialect.connection():
        box.dialect.run("DROP TABLE outbox_event")
    assert "outbox init" in browser.get("/events", expect=503).text


@on_postgres
def test_an_unavailable_database_is_shown_without_the_driver_s_message(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database: Any = outbox.current().database
    database.close_all()
    database.connect_params["port"] = 1
    for path in ("/", "/events", "/audit"):
        page = browser.get(path, expect=503)
        assert "The database is unavailable" in page.text
        assert "refused" not in page.text
    assert "refused" in caplog.text


def test_metrics_are_served(client: Client) -> None:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "outbox_" in answer.text


TRANSACTIONS = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


def test_a_page_asks_the_database_as_often_for_many_events_as_for_few(box: Outbox, browser: Browser) -> None:
    def asked(path: str) -> int:
        with statements(box.database) as seen:
            browser.get(path)
        return len([each for each in seen if not each.startswith(TRANSACTIONS) and "set_config" not in each])

    one = failed(aggregate_id="1")
    paths = ("/", "/events", "/events?status=failed", "/events?type=order.placed", f"/events/{one.id}", "/audit")
    few = {path: asked(path) for path in paths}
    for number in range(120):
        failed(aggregate_id=str(number))
    assert {path: asked(path) for path in paths} == few
    assert max(few.values()) <= 24


def test_pages_have_landmarks_labels_and_captions(browser: Browser) -> None:
    event = failed()
    for path in ("/", "/events", f"/events/{event.id}", "/audit", f"/confirm?action=fail&scope=selected&id={event.id}"):
        page = browser.get(path)
        tags = [tag for tag, _ in page.tags]
        assert {"header", "nav", "main", "footer"} <= set(tags)
        assert tags.count("h1") == 1
        assert tags.count("table") == tags.count("caption")
        labelled = {attributes["for"] for tag, attributes in page.tags if tag == "label" and "for" in attributes}
        for tag, attributes in page.tags:
            if tag in ("input", "select") and attributes.get("type") not in ("hidden", "radio"):
                assert attributes.get("id") in labelled or "aria-label" in attributes, attributes
        given = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(given) == len(set(given))
