"""Actions of operators: explained first, applied to the chosen events that are still in that state, and audited."""

import functools
import threading
from typing import Any

import pytest

import outbox
from outbox.admin.web import make_app
from outbox.admin.web.background_action import BackgroundActions
from outbox.core import Outbox
from outbox.operations import apply_action
from outbox.operations.actions import ACTIONS
from outbox.operations.filters import Filter
from outbox.storage.models import OutboxEvent
from outbox.telemetry import audit
from outbox.telemetry.audit import Interrupted, Operator
from tests.admin.web.browser import Browser, Document, browser_with, form_to
from tests.admin.web.client import Client, anybody
from tests.admin.web.sample import delivered, failed, many_delivered, sending, waiting
from tests.conftest import Configure
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import emit_one, error_of, other_worker, statuses, stored

MAKE = {"retry": failed, "replay": delivered, "fail": waiting, "delete": delivered}


def select(page: Document, *events: OutboxEvent) -> list[tuple[str, str]]:
    return [("id", str(event.id)) for event in events]


def selected(browser: Browser, action: str, *events: OutboxEvent) -> Document:
    """Select some in the list, and press a button."""
    page = browser.get("/events")
    return browser.submit(form_to(page, "/confirm"), *select(page, *events), ("action", action))


def everything(browser: Browser, action: str, **filters: str) -> Document:
    page = browser.get("/events", filters)
    return browser.submit(form_to(page, "/confirm"), ("scope", "all"), ("action", action), without=("scope",))


def go(browser: Browser, confirmation: Document, *added: tuple[str, str]) -> Document:
    return browser.submit(form_to(confirmation, "/act"), *added)


def last(box: Outbox) -> Any:
    return audit.latest(box.dialect)[0]


# From the page of an event, and from the list


@pytest.mark.parametrize(
    ("action", "question", "result", "status"),
    [
        ("retry", "Retry 1 event?", "1 event was queued for retry.", "pending"),
        ("replay", "Replay 1 event?", "1 event was queued for replay.", "pending"),
        ("fail", "Fail 1 event?", "1 event was marked failed.", "failed"),
    ],
)
def test_an_event_is_changed_from_its_page(
    browser: Browser, action: str, question: str, result: str, status: str
) -> None:
    event, other = MAKE[action](), MAKE[action]()
    before = stored(other).status
    page = browser.get(f"/events/{event.id}")
    form = form_to(page, "/confirm")
    assert ("action", action) in form.buttons
    confirmation = browser.submit(form, ("action", action))
    assert question in confirmation.text
    page = go(browser, confirmation)
    assert result in page.text
    assert f"Id {event.id}" in page.text
    assert stored(event).status == status
    assert stored(other).status == before


def test_an_event_is_deleted_from_its_page(browser: Browser) -> None:
    event = failed()
    page = go(browser, browser.submit(form_to(browser.get(f"/events/{event.id}"), "/confirm"), ("action", "delete")))
    assert "1 event was deleted." in page.text
    assert statuses() == {}


def test_the_confirmation_page_changes_nothing(browser: Browser) -> None:
    event = failed()
    for action in MAKE:
        browser.get("/confirm", action=action, scope="selected", id=str(event.id))
        browser.get("/confirm", action=action, scope="all")
    assert statuses() == {"failed": 1}


def test_only_the_selected_events_are_changed(box: Outbox, browser: Browser) -> None:
    one, two, three = failed(), failed(), failed()
    confirmation = selected(browser, "retry", one, three)
    assert "Retry 2 events?" in confirmation.text
    assert "2 events were queued for retry." in go(browser, confirmation).text
    assert [stored(event).status for event in (one, two, three)] == ["pending", "failed", "pending"]
    assert set(last(box).filters["ids"]) == {str(one.id), str(three.id)}


def test_all_that_match_are_changed_beyond_the_page(box: Outbox, browser: Browser) -> None:
    many_delivered(70, tenant_id="acme")
    spared = delivered(tenant_id="globex")
    confirmation = everything(browser, "delete", tenant="acme")
    assert "Delete 70 events?" in confirmation.text
    assert "tenant acme" in confirmation.text
    page = go(browser, confirmation)
    assert "70 events were deleted." in page.text
    assert list(OutboxEvent.select()) == [spared]
    entry = last(box)
    assert (entry.action, entry.affected, entry.filters["tenant_id"]) == ("delete", 70, "acme")
    assert entry.ended_at is not None


def test_the_count_says_when_it_stopped_counting(box: Outbox) -> None:
    many_delivered(6)
    assert "Delete 5+ events?" in everything(browser_with(box, count_cap=5), "delete").text


def test_events_emitted_after_the_confirmation_page_are_not_changed(browser: Browser) -> None:
    failed()
    confirmation = everything(browser, "retry")
    late = failed()
    assert "1 event was queued for retry." in go(browser, confirmation).text
    assert stored(late).status == "failed"


def test_events_that_changed_their_state_meanwhile_are_not_changed(browser: Browser) -> None:
    event, other = failed(), failed()
    confirmation = selected(browser, "retry", event, other)
    outbox.retry_failed_events(ids=[event.id])
    assert "1 event was queued for retry." in go(browser, confirmation).text
    page = go(browser, confirmation)
    assert "Nothing was queued for retry: only events that have failed can be." in page.text


@pytest.mark.parametrize(
    ("action", "make"),
    [("retry", delivered), ("retry", waiting), ("replay", failed), ("fail", delivered), ("delete", waiting)],
)
def test_an_action_that_is_not_for_this_state_is_not_offered_and_not_done(
    browser: Browser, action: str, make: Any
) -> None:
    event = make()
    before = stored(event).status
    assert ("action", action) not in form_to(browser.get(f"/events/{event.id}"), "/confirm").buttons
    confirmation = selected(browser, action, event)
    assert "No events to" in confirmation.text
    assert [form for form in confirmation.forms if form.action == "/act"] == []
    assert stored(event).status == before


def test_an_event_that_is_being_delivered_is_not_failed(browser: Browser) -> None:
    event = sending()
    page = go(browser, selected(browser, "fail", event))
    assert "Nothing was marked failed" in page.text
    assert stored(event).status == "sending"


# Details of each


def test_a_retry_starts_again_where_it_failed_and_nowhere_else(browser: Browser) -> None:
    event = failed()
    go(browser, selected(browser, "retry", event))
    row = stored(event)
    assert (row.status, row.attempts) == ("pending", 0)
    assert row.progress == {"runner": {"state": "waiting"}, "bus": {"state": "delivered", "attempts": 1}}


def test_failing_stores_the_reason(browser: Browser) -> None:
    event = waiting()
    go(browser, selected(browser, "fail", event), ("reason", "the customer <left>"))
    assert error_of(event).startswith("failed by an operator: the customer <left>")


def test_a_replay_may_be_to_one_destination(box: Outbox, browser: Browser) -> None:
    other_worker(box, bus="*")
    event = delivered()
    confirmation = browser.get("/confirm", action="replay", scope="selected", id=str(event.id), to="bus")
    go(browser, confirmation, ("to", "bus"))
    assert stored(event).progress == {"bus": {"state": "waiting"}, "(others)": {"state": "delivered"}}


def test_a_replay_to_a_destination_that_does_not_exist_is_refused(browser: Browser) -> None:
    event = delivered()
    page = browser.get("/confirm", expect=400, action="replay", scope="selected", id=str(event.id), to="typo")
    assert "There is no destination called 'typo'" in page.text


def test_a_replay_to_all_clears_the_progress(browser: Browser) -> None:
    event = delivered()
    go(browser, selected(browser, "replay", event))
    assert stored(event).progress is None


def test_a_retry_wakes_a_worker(configure: Configure) -> None:
    configure()
    event = failed()
    browser = Browser(Client(make_app(configure(dispatch="inline"), authenticate=anybody)))
    seen: list[outbox.Event] = []
    outbox.handler("order.placed", name="runner")(seen.append)
    go(browser, selected(browser, "retry", event))
    assert [each.id for each in seen] == [event.id]
    assert stored(event).status == "delivered"


# The audit log


def test_the_user_is_stored_and_shown(configure: Configure) -> None:
    box = configure()
    browser = Browser(Client(make_app(box, authenticate=lambda connection: "grace <hopper>")))
    event = failed()
    go(browser, selected(browser, "retry", event))
    entry = last(box)
    assert (entry.who, entry.action, entry.affected) == ("grace <hopper>", "retry", 1)
    page = browser.get("/audit")
    assert "grace <hopper> retry 1" in page.text
    assert f"/events/{event.id}" in page.links.values()
    assert "Retry by grace <hopper>" in browser.get(f"/events/{event.id}").text


def test_a_filter_is_shown_in_the_audit(browser: Browser) -> None:
    failed(tenant_id="acme")
    go(browser, everything(browser, "retry", tenant="acme", status="failed"))
    page = browser.get("/audit")
    assert "status failed" in page.text
    assert "tenant_id acme" in page.text


# Read-only


def test_read_only_shows_everything_and_changes_nothing(configure: Configure) -> None:
    for box, read_only in ((configure(), True), (configure(dashboard_read_only=True), None)):
        client = Client(make_app(box, authenticate=anybody, read_only=read_only))
        event = failed()
        browser = Browser(client)
        for path in ("/events", f"/events/{event.id}"):
            page = browser.get(path)
            assert [form for form in page.forms if form.buttons] == []
            assert "read-only" in page.text
        browser.get("/confirm", action="retry", scope="all", expect=403)
        body = f"action=retry&scope=selected&id={event.id}&csrf_token={client.cookies['outbox_csrf']}"
        assert "read-only" in client.post("/act", content=body).text
        assert stored(event).status == "failed"


# Invalid requests


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"action": "retry"},
        {"action": "explode", "scope": "all"},
        {"action": "retry", "scope": "selected"},
        {"action": "retry", "scope": "none", "id": "00000000-0000-7000-8000-000000000000"},
        {"action": "retry", "scope": "all", "status": "lost"},
        {"action": "retry", "scope": "all", "since": "yesterday"},
        {"action": "retry", "scope": "all", "before": "soon"},
        {"action": "retry", "scope": "all", "tenant": "a\x00b"},
        {"action": "retry", "scope": "all", "tenant": "x" * 501},
    ],
)
def test_an_invalid_request_changes_nothing(browser: Browser, asked: dict[str, str]) -> None:
    failed()
    browser.get("/confirm", asked, expect=400)
    form = form_to(selected(browser, "retry", failed()), "/act")
    form.fields = [field for field in form.fields if field[0] == "csrf_token"]
    browser.submit(form, *asked.items(), expect=400)
    assert statuses() == {"failed": 2}


def test_a_wrong_id_among_right_ones_is_refused(browser: Browser) -> None:
    event = failed()
    confirmation = selected(browser, "retry", event)
    browser.submit(form_to(confirmation, "/act"), ("id", "x"), expect=404)
    assert stored(event).status == "failed"


@pytest.mark.parametrize("body", [b"\xff\xfe", b"&".join(b"a=1" for _ in range(5000)), b"x" * (1024 * 1024 + 1)])
def test_a_form_that_can_not_be_parsed_is_refused(client: Client, body: bytes) -> None:
    assert client.post("/act", content=body).status_code in (400, 413)


# What takes long


def test_a_long_action_continues_and_the_audit_page_shows_its_progress(
    box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = browser_with(box, wait_seconds=0.01)
    gate, arrived = threading.Event(), threading.Event()

    def slowly(*args: Any, **kwargs: Any) -> Any:
        arrived.set()
        assert gate.wait(PATIENCE_SECONDS)
        yield from apply(*args, **kwargs)

    apply = apply_action.apply
    event = failed()
    confirmation = selected(browser, "retry", event)
    monkeypatch.setattr(apply_action, "apply", slowly)
    page = go(browser, confirmation)
    assert "Retry is still running." in page.text
    assert arrived.wait(PATIENCE_SECONDS)
    assert stored(event).status == "failed"
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "outbox-retry":
            thread.join()
    assert stored(event).status == "pending"


def test_an_error_of_an_action_is_shown(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*args: Any, **kwargs: Any) -> Any:
        raise outbox.SchemaError("gone: run `outbox init`")

    confirmation = selected(browser, "retry", failed())
    monkeypatch.setattr(apply_action, "apply", break_down)
    assert "gone" in browser.submit(form_to(confirmation, "/act"), expect=503).text


def test_a_link_can_not_show_its_own_text(browser: Browser) -> None:
    emit_one()
    for did, number in (("<b>", "1"), ("retry", "<b>"), ("retry", "9" * 400), ("retry", "-1"), ("retry", "٣")):
        page = browser.get("/events", did=did, number=number)
        assert "b" not in [tag for tag, _ in page.tags]
        assert "9999" not in page.text


def test_an_action_that_is_running_when_the_process_stops_ends_as_interrupted(
    box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops after its batch, and the audit says why, and how many events it has changed."""
    made = [failed(idempotency_key=str(number)) for number in range(5)]
    one_at_a_time = functools.partial(apply_action.apply, batch_size=1)
    reached, go_on = threading.Event(), threading.Event()

    def waiting_after_two(*args: Any, **options: Any) -> Any:
        for total in (work := one_at_a_time(*args, **options)):
            if total == 2:
                reached.set()
                assert go_on.wait(PATIENCE_SECONDS)
            try:
                yield total
            except Interrupted as error:
                work.throw(error)

    monkeypatch.setattr(apply_action, "apply", waiting_after_two)
    actions = BackgroundActions()
    assert actions.run(box, ACTIONS["retry"], Filter(), Operator("ada"), wait_seconds=0.01) is None
    assert reached.wait(PATIENCE_SECONDS)
    threading.Timer(0.05, go_on.set).start()
    actions.stop()
    entry = last(box)
    assert (entry.outcome, entry.cause, entry.affected) == ("interrupted", "the dashboard was stopped", 2)
    assert statuses() == {"pending": 2, "failed": 3}
    assert len(made) == 5
