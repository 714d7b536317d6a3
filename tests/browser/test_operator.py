"""An operator in a browser: find a failed event, read why, retry it, see it delivered; select, refresh and pause."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from outbox.storage.dialect import Dialect
from outbox.telemetry import audit
from outbox.webhooks import new_secret
from tests.browser.conftest import Dashboard, Page
from tests.browser.events import block_key, fail_one
from tests.support.processes import BIN, Stage
from tests.support.receiver import Receiver, answers
from tests.support.servers import PATIENCE_SECONDS


def test_a_failed_event_is_found_understood_retried_and_seen_delivered(stage: Stage, dashboard: Dashboard) -> None:
    stage.worker()
    event, gate = fail_one(stage)
    page = dashboard.page()

    page.goto("/")
    page.get_by_role("row", name="the gate is bad").get_by_role("link", name="1").click()
    page.get_by_role("table", name="Events, newest first").get_by_role("link", name="test.emitted").click()
    assert page.url.endswith(f"/events/{event}")
    assert "the gate is bad" in page.locator(".error-text").inner_text()
    assert "not tried again automatically" in page.locator(".state").inner_text()

    gate.mend()
    page.get_by_role("button", name="Retry…").click()
    page.get_by_role("heading", name="Retry 1 event?").wait_for()
    page.get_by_role("button", name="Retry 1 event").click()
    page.get_by_role("status").filter(has_text="1 event was queued for retry.").wait_for()
    # By itself: nobody reloads the page.
    page.locator(".state .badge.delivered").wait_for()
    page.get_by_text("Delivered to every destination").wait_for()
    assert stage.statuses() == {"delivered": 1}

    page.get_by_role("link", name="Audit").click()
    page.get_by_role("row", name="dashboard retry 1").wait_for()


def test_all_of_it_works_without_scripts(stage: Stage, dashboard: Dashboard) -> None:
    stage.worker()
    event, gate = fail_one(stage)
    page = dashboard.page(java_script_enabled=False)

    page.goto("/")
    page.locator("a.tile.failed").click()
    assert page.locator("#pause").is_hidden()
    page.locator(f'input[value="{event}"]').check()
    gate.mend()
    page.get_by_role("button", name="Retry…").click()
    page.get_by_role("button", name="Retry 1 event").click()
    page.locator(".notice", has_text="1 event was queued for retry.").wait_for()

    stage.wait_until_all("delivered")
    page.goto(f"/events/{event}")
    assert page.locator(".state .badge").inner_text() == "delivered"


def test_those_that_match_are_selected_at_once_and_retried(stage: Stage, dashboard: Dashboard) -> None:
    stage.worker()
    (_, first), (_, second) = fail_one(stage), fail_one(stage)
    page = dashboard.page()
    page.goto("/events?status=failed")
    page.get_by_label("Select all on this page").check()
    assert page.locator("#selected-count").inner_text() == " (2)"
    first.mend()
    second.mend()
    page.get_by_role("button", name="Retry…").click()
    page.get_by_role("button", name="Retry 2 events").click()
    page.locator(".notice", has_text="2 events were queued for retry.").wait_for()
    stage.wait_until_all("delivered")


def test_the_search_leads_to_an_event(stage: Stage, dashboard: Dashboard) -> None:
    (event,) = stage.emit(1)
    page = dashboard.page()
    page.goto("/")
    page.get_by_role("searchbox").fill(str(event))
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="test.emitted").wait_for()
    assert page.url.endswith(f"/events/{event}")


# Refreshing


@pytest.fixture
def asked(stage: Stage, dashboard: Dashboard) -> tuple[Page, list[str]]:
    """A list of events whose clock the test moves, and the refreshes that it has asked for."""
    stage.emit(1)
    page = dashboard.page()
    page.clock.install()
    page.goto("/events")
    page.locator("#refreshed.on").wait_for()
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url) if "/static/" not in request.url else None)
    return page, seen


def test_a_list_refreshes_by_itself(stage: Stage, asked: tuple[Page, list[str]]) -> None:
    page, seen = asked
    stage.emit(1)
    page.clock.run_for(6_000)
    page.get_by_text("2 events").first.wait_for()
    assert len(seen) == 1


def test_a_paused_page_sends_no_requests(asked: tuple[Page, list[str]]) -> None:
    page, seen = asked
    page.get_by_role("button", name="Pause refresh").click()
    page.clock.run_for(60_000)
    assert seen == []
    page.reload()
    page.get_by_role("button", name="Resume refresh").click()
    seen.clear()
    with page.expect_request("**/events"):
        page.clock.run_for(6_000)


def test_the_list_is_not_refreshed_while_events_are_selected(asked: tuple[Page, list[str]]) -> None:
    page, seen = asked
    page.locator('input[name="id"]').check()
    page.get_by_role("heading", name="Events").click()  # the focus is elsewhere
    page.clock.run_for(60_000)
    assert seen == []
    assert page.locator('input[name="id"]').is_checked()


def test_the_list_is_not_refreshed_while_it_has_the_keyboard_focus(asked: tuple[Page, list[str]]) -> None:
    page, seen = asked
    page.get_by_role("link", name="test.emitted").focus()
    page.clock.run_for(60_000)
    assert seen == []
    page.get_by_role("button", name="Pause refresh").focus()
    with page.expect_request("**/events"):
        page.clock.run_for(6_000)


def test_a_page_says_when_the_dashboard_no_longer_responds(
    stage: Stage, dashboard: Dashboard, asked: tuple[Page, list[str]]
) -> None:
    page, _ = asked
    stage.programs[-1].kill()
    page.clock.run_for(6_000)
    page.locator("#refreshed.stale").wait_for()
    assert any("ERR_CONNECTION" in said for said in dashboard.trouble)
    dashboard.trouble.clear()


def test_a_blocked_key_is_found_and_goes_on_without_the_event_that_blocks_it(
    stage: Stage, dashboard: Dashboard
) -> None:
    stage.worker()
    head, waiting = block_key(stage)
    page = dashboard.page()

    page.goto("/")
    page.get_by_role("link", name="See the keys").click()
    row = page.get_by_role("row", name="order:4711")
    assert "2 events" in row.inner_text()

    page.goto(f"/events/{waiting}")
    assert "Waits behind" in page.locator(".state").inner_text()
    page.locator(".state").get_by_role("link", name="test.emitted").click()
    page.wait_for_url(f"**/events/{head}")

    page.get_by_role("link", name="Blocked keys").click()
    page.get_by_role("button", name="Skip the event that blocks order:4711").click()
    page.get_by_role("heading", name="Skip 1 event?").wait_for()
    page.get_by_role("button", name="Skip 1 event").click()
    page.get_by_role("status").filter(has_text="1 event was skipped.").wait_for()
    # The next event of the key fails as well: it blocks the last one, and the page shows it by itself.
    row.get_by_text("1 event").wait_for()
    assert stage.statuses() == {"failed": 2, "pending": 1}


# What operators do during an outage, and with many events


def test_a_destination_that_is_away_is_found_paused_resumed_and_recovered(stage: Stage, dashboard: Dashboard) -> None:
    with Receiver(answers(503)) as receiver:
        stage.environment |= {"OUTBOX_WEBHOOK_URL": receiver.url, "OUTBOX_WEBHOOK_SECRET": new_secret()}
        stage.worker()
        stage.scheduler()
        stage.emit(30)
        stage.wake()
        page = dashboard.page()
        page.goto("/")
        row = page.get_by_role("table", name="Destinations and whether").get_by_role("row", name="webhook")
        row.get_by_text("unavailable").wait_for()
        row.get_by_role("link", name="webhook").click()
        page.get_by_text("Next probe").wait_for()
        page.get_by_role("table", name="The latest attempts").get_by_text("HTTP 503").first.wait_for()

        page.get_by_text("Pause or throttle…").click()
        page.get_by_label("Reason").fill("the night shift knows")
        page.get_by_role("button", name="Pause: webhook").click()
        page.get_by_role("status").filter(has_text="It is paused.").wait_for()
        page.locator(".badge", has_text="the night shift knows").wait_for()
        page.get_by_role("button", name="Resume: webhook").click()
        page.get_by_role("status").filter(has_text="It is resumed").wait_for()

        receiver.then(answers(200))
        page.get_by_role("button", name="It is back: webhook").click()
        page.get_by_role("status").filter(has_text="It is tried again").wait_for()
        stage.wait_until_all("delivered")
        assert stage.statuses() == {"delivered": 30}
    assert [entry.action for entry in audit.latest(stage.box.dialect)] == ["recover", "resume", "pause"]


@contextmanager
def blocked(dialect: Dialect, event: UUID) -> Iterator[None]:
    """Let whoever deletes an event wait, until the block is left."""
    dialect.run("SELECT pg_advisory_lock(4711)")
    dialect.run(
        "CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN OLD; END'"
    )
    dialect.run(
        "CREATE TRIGGER wait_for_the_test BEFORE DELETE ON outbox_event FOR EACH ROW "
        f"WHEN (OLD.id = '{event}') EXECUTE FUNCTION wait_for_the_test()"
    )
    try:
        yield
    finally:
        dialect.run("SELECT pg_advisory_unlock(4711)")


def test_an_action_on_many_events_is_watched_and_stopped(stage: Stage, dashboard: Dashboard) -> None:
    ids = sorted(stage.emit(1_200))
    dialect = stage.box.dialect
    page = dashboard.page()
    with dialect.connection():
        dialect.run("UPDATE outbox_event SET status = 'failed', next_attempt_at = NULL, error_message = 'no'")
        try:
            with blocked(dialect, ids[700]):  # in the second batch
                page.goto("/confirm?action=delete&scope=all&status=failed")
                page.get_by_role("button", name="Delete 1,200 events").click()
                page.get_by_role("status").filter(has_text="still running").wait_for()
                page.get_by_role("table", name="Actions of operators").get_by_role("link").first.click()
                page.get_by_text("500 of 1,200 that matched").wait_for()
                page.get_by_role("button", name="Stop").click()
                page.get_by_role("button", name="Stop").wait_for(state="detached")
            # By itself: nobody reloads the page.
            page.get_by_text("interrupted by").wait_for()
            assert stage.statuses() == {"failed": 200}
        finally:
            dialect.run("DROP FUNCTION wait_for_the_test CASCADE")


def test_what_was_erased_is_no_longer_shown(stage: Stage, dashboard: Dashboard) -> None:
    box, mail = stage.box, "ada@example.com"
    with box.dialect.connection():
        event = box.emit("User", 7, "user.invited", {"mail": mail}, subject="user:7")
        box.dialect.run("UPDATE outbox_event SET status = 'delivered', next_attempt_at = NULL, delivered_at = now()")
    page = dashboard.page()
    page.goto(f"/events/{event.id}")
    page.get_by_text(mail).first.wait_for()
    command = [str(BIN / "outbox"), "erase", "--subject", "user:7", "--yes"]
    subprocess.run(command, env=stage.environment, capture_output=True, check=True, timeout=PATIENCE_SECONDS)
    page.get_by_text("The content of the event was erased").wait_for()
    assert mail not in page.content()
    page.goto("/audit")
    page.get_by_role("row", name="erase").wait_for()
    assert mail not in page.content()


def test_times_are_shown_in_the_browsers_time_zone_on_request(stage: Stage, dashboard: Dashboard) -> None:
    (event,) = stage.emit(1)
    page = dashboard.page(timezone_id="Asia/Kolkata")
    page.goto(f"/events/{event}")
    time = page.locator(".timeline time.at").first
    utc = time.inner_text()
    page.get_by_role("button", name="Local time").click()
    assert time.inner_text() != utc
    page.reload()
    local = datetime.fromisoformat(time.inner_text()) - timedelta(hours=5, minutes=30)
    assert f"{local:%Y-%m-%d %H:%M:%S} UTC" == utc
    page.get_by_role("button", name="Show UTC").click()
    assert time.inner_text() == utc
