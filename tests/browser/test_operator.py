"""An operator in a browser: find a failed event, read why, retry it, see it delivered; select, refresh and pause."""

import pytest

from tests.browser.conftest import Dashboard, Page
from tests.browser.events import fail_one
from tests.support.processes import Stage


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
    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(60_000)
    assert seen == []
    page.reload()
    page.get_by_role("button", name="Resume").click()
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
    page.get_by_role("button", name="Pause").focus()
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
