"""The dashboard's page of periodic jobs, and its buttons."""

from datetime import timedelta

import pytest

import outbox
from outbox.core import Outbox
from outbox.telemetry import audit
from tests.admin.web.browser import Browser, Document, Form, browser_with
from tests.admin.web.client import Client
from tests.support.periodic import change_job, declare, declared, let_job_age, runs, scheduler

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def button(page: Document, action: str) -> Form:
    (form,) = [form for form in page.forms if ("action", action) in form.buttons]
    return form


def press(browser: Browser, page: Document, action: str, *, expect: int = 200) -> Document:
    return browser.submit(button(page, action), ("action", action), expect=expect)


def test_without_jobs_it_says_how_to_declare_one(browser: Browser) -> None:
    assert "outbox scheduler your.module" in browser.get("/periodic").text


def test_it_shows_the_schedule_in_words_the_last_run_and_the_next_in_both_times(box: Outbox, browser: Browser) -> None:
    declare(cron="0 3 * * *", timezone="Europe/Berlin")
    tick = scheduler(box)
    tick()
    let_job_age(box, days=1)
    tick()
    box.process_pending_events()
    page = browser.get("/periodic")
    job = declared(box)
    for text in (
        "at 03:00 every day",
        "0 3 * * * Europe/Berlin",
        "succeeded in",
        f"{job.next_run_at:%Y-%m-%d %H:%M:%S} UTC",
    ):
        assert text in page.text
    assert "03:00:00 CE" in page.text
    assert any(link.endswith(f"/events/{job.last_run_id}") for link in page.links.values())
    assert browser.get("/").links["Periodic"] == "/periodic"


def test_it_says_what_is_paused_overdue_and_without_a_scheduler(box: Outbox, browser: Browser) -> None:
    declare()
    scheduler(box)()
    now = declared(box).seen_at
    assert "overdue" not in browser.get("/periodic").text
    change_job(box, next_run_at=now - timedelta(hours=1))
    assert "overdue" in browser.get("/periodic").text
    change_job(box, seen_at=now - timedelta(minutes=2))
    assert "no scheduler has it" in browser.get("/periodic").text


def test_what_it_shows_is_escaped(box: Outbox, browser: Browser) -> None:
    name = "<script>alert(1)</script>"

    @outbox.periodic(hours=1, name=name)
    def job(run: outbox.Run) -> None:
        raise ValueError("<b>bold</b>")

    tick = scheduler(box)
    tick()
    press(browser, browser.get("/periodic"), "run")
    tick()
    box.process_pending_events()
    page = browser.get("/periodic")
    assert name in page.text
    assert "<b>bold</b>" in page.text
    assert "b" not in {tag for tag, _ in page.tags}


def test_its_buttons_run_pause_and_resume_and_the_audit_log_has_the_users_name(box: Outbox, browser: Browser) -> None:
    declare()
    tick = scheduler(box)
    tick()
    page = press(browser, browser.get("/periodic"), "run")
    assert "The job will run as soon as" in page.text
    tick()
    assert len(runs(box)) == 1
    page = press(browser, page, "pause")
    assert ("The job is paused" in page.text, declared(box).paused) == (True, True)
    page = press(browser, page, "resume")
    assert ("The job is resumed" in page.text, declared(box).paused) == (True, False)
    entries = [(entry.action, entry.who) for entry in audit.latest(box.dialect)]
    assert entries == [(f"{action} periodic", "dashboard") for action in ("resume", "pause", "run")]
    assert "pause periodic" in browser.get("/audit").text


def test_only_a_job_that_no_scheduler_has_can_be_forgotten(box: Outbox, browser: Browser) -> None:
    declare()
    scheduler(box)()
    page = browser.get("/periodic")
    assert not [form for form in page.forms if ("action", "forget") in form.buttons]
    browser.submit(button(page, "run"), ("action", "forget"), expect=400)
    change_job(box, seen_at=declared(box).seen_at - timedelta(minutes=2))
    page = press(browser, browser.get("/periodic"), "forget")
    assert "No periodic jobs" in page.text


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ("action=pause&name=nothing", 400),
        ("action=delete&name=job", 400),
        ("name=job", 400),
        ("action=pause", 400),
        ("action=pause&name=%00", 400),
    ],
)
def test_a_form_that_asks_for_what_there_is_not_is_refused(
    box: Outbox, browser: Browser, fields: str, status: int
) -> None:
    declare()
    scheduler(box)()
    token = dict(button(browser.get("/periodic"), "pause").fields)["csrf_token"]
    answer = browser.client.post("/periodic/act", content=f"{fields}&csrf_token={token}", headers=FORM)
    assert answer.status_code == status
    assert not declared(box).paused


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "cross-site"}])
def test_another_site_can_change_nothing(box: Outbox, browser: Browser, headers: dict[str, str]) -> None:
    declare()
    scheduler(box)()
    token = dict(button(browser.get("/periodic"), "pause").fields)["csrf_token"] if headers else "x" * 43
    body = f"action=pause&name=job&csrf_token={token}"
    assert browser.client.post("/periodic/act", content=body, headers=FORM | headers).status_code == 403
    assert browser.client.get(f"/periodic/act?{body}").status_code == 405
    assert not declared(box).paused


def test_a_read_only_dashboard_has_no_buttons_and_changes_nothing(box: Outbox, client: Client) -> None:
    declare()
    scheduler(box)()
    browser = browser_with(box, read_only=True)
    page = browser.get("/periodic")
    assert "job" in page.text
    assert not [form for form in page.forms if form.method == "post"]
    assert browser.client.post("/periodic/act", content="action=pause&name=job", headers=FORM).status_code == 403
    assert not declared(box).paused
