"""Whatever stands in an event, the browser runs none of it."""

import json
from typing import Any

from outbox.storage import timestamp
from tests.browser.conftest import Dashboard
from tests.support.processes import Stage

ATTACKS = (
    "<script>window.boomed = 1; alert(1)</script>",
    "\"><img src=x onerror='window.boomed = 2; alert(2)'>",
    '\'><svg onload="window.boomed = 3; alert(3)">',
    "</pre></title></option></textarea><iframe srcdoc='<script>top.boomed = 4</script>'></iframe>",
    "javascript:window.boomed=5;alert(5)//",
    '" autofocus onfocus="window.boomed = 6" x="',
    "\" hx-get='/boom' hx-trigger='load' hx-on:load='window.boomed = 7' x=\"",
    "<a href='javascript:window.boomed=8'>x</a><style>body{display:none}</style><base href='//evil.example.com/'>",
)


def plant(stage: Stage, attack: str) -> str:
    box = stage.box
    short = attack[:100]
    fields: dict[str, Any] = {
        "payload": {attack: [attack, {attack: attack}]},
        "headers": {attack: attack},
        "idempotency_key": attack,
        "correlation_id": attack,
        "tenant_id": attack,
    }
    progress = {attack: {"state": "failed", "attempts": 1, "error": attack}}
    with box.dialect.connection():
        event = box.emit(short, short, short, **fields)
        box.dialect.run(
            "UPDATE outbox_event SET status = 'failed', next_attempt_at = NULL, error_message = %s, progress = %s, "
            "ordering_key = %s WHERE id = %s",
            (attack, json.dumps(progress), attack, event.id),
        )
        details = {
            "publish_seconds": 3600,
            "destinations": {attack: {"kind": attack}},
            "breakers": {attack: {"open": True, "trips": 1, "seconds": 5.0, "error": attack}},
        }
        moment = timestamp.to_text(event.created_at)
        box.dialect.run(
            "INSERT INTO outbox_process (id, kind, host, pid, started_at, seen_at, details) "
            "VALUES (%s, %s, %s, 1, %s, %s, %s)",
            (event.id.hex[-30:], "worker", attack, moment, moment, json.dumps(details)),
        )
        box.dialect.run(
            "INSERT INTO outbox_audit (id, at, who, action, filters, affected) VALUES (%s, %s, %s, %s, %s, 1)",
            (event.id, moment, attack, attack[:20], json.dumps({"tenant_id": attack, "ids": [attack]})),
        )
    return str(event.id)


def test_attacks_in_every_field_run_nothing_and_send_nothing(stage: Stage, dashboard: Dashboard) -> None:
    ids = {plant(stage, attack): attack for attack in ATTACKS}
    page = dashboard.page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    paths = ["/", "/events", "/events?status=failed", "/periodic", "/audit", "/confirm?action=retry&scope=all"]
    paths += [f"/events/{id}" for id in ids]
    paths += [f"/confirm?action=retry&scope=selected&id={id}" for id in ids]
    for path in paths:
        page.goto(path)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("window.boomed") is None
        assert page.locator("iframe, base, img[src='x'], style, [onerror], [onload], [onfocus]").count() == 0
        assert page.locator("body").is_visible()
        assert page.locator("a[href^='javascript']").count() == 0
    assert [url for url in asked if "boom" in url and "/events" not in url] == []

    # Also what a refresh brings in, and what is typed in by somebody who was told to.
    for attack in ATTACKS:
        page.goto("/events")
        page.get_by_role("searchbox").fill(attack)
        page.keyboard.press("Enter")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("window.boomed") is None
    page.clock.install()
    page.goto("/")
    page.locator("#refreshed.on").wait_for()
    with page.expect_response("**/"):
        page.clock.run_for(6_000)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.boomed") is None


def test_the_policy_stops_a_script_that_got_in_all_the_same(stage: Stage, dashboard: Dashboard) -> None:
    page = dashboard.page()
    page.goto("/")
    page.evaluate(
        "() => { const tag = document.createElement('script'); tag.textContent = 'window.boomed = 1'; "
        "document.body.append(tag); const image = document.createElement('img'); image.setAttribute('onerror', "
        "'window.boomed = 2'); image.src = 'x:'; document.body.append(image); }"
    )
    page.wait_for_function("() => new Promise(done => setTimeout(() => done(true), 0))")
    assert page.evaluate("window.boomed") is None
    assert any("Content Security Policy" in said for said in dashboard.trouble)
    dashboard.trouble.clear()


def test_another_page_can_neither_frame_it_nor_post_to_it(stage: Stage, dashboard: Dashboard) -> None:
    event = plant(stage, "harmless")
    page = dashboard.page()
    page.goto("/events")  # the browser has the cookie now
    (cookie,) = [each for each in page.context.cookies() if each["name"] == "outbox_csrf"]
    attack = (
        f"<iframe src='{dashboard.address}/'></iframe><form method=post action='{dashboard.address}/act'>"
        f"<input name=action value=delete><input name=scope value=selected><input name=id value='{event}'>"
        f"<input name=csrf_token value='{cookie['value']}'></form>"  # even if it had guessed it
    )
    page.route("http://attacker.test/", lambda route: route.fulfill(content_type="text/html", body=attack))
    page.goto("http://attacker.test/")
    assert page.frames[1].locator(".brand").count() == 0
    with page.expect_navigation(url="**/act"):
        page.evaluate("document.forms[0].submit()")
    assert page.get_by_role("heading", name="You are not signed in").is_visible()  # the browser keeps the cookie back
    assert stage.statuses() == {"failed": 1}
    dashboard.trouble.clear()  # the attacker's own page, and the frame that was refused


def test_a_browser_signs_in_once_and_its_address_bar_forgets_the_token(dashboard: Dashboard) -> None:
    page = dashboard.stranger()
    page.goto("/")
    assert page.get_by_role("heading", name="You are not signed in").is_visible()
    used = dashboard.link
    page.goto(used)
    assert page.url == f"{dashboard.address}/"
    page.get_by_role("link", name="Events").first.click()
    page.wait_for_url("**/events")
    page.go_back()
    assert page.url == f"{dashboard.address}/"
    other = dashboard.stranger()
    other.goto(used)
    assert other.get_by_role("heading", name="You are not signed in").is_visible()
    other.goto(dashboard.link)
    assert other.url == f"{dashboard.address}/"
    assert other.locator(".brand").is_visible()


def test_a_link_that_is_opened_from_another_site_signs_in_too(dashboard: Dashboard) -> None:
    page = dashboard.stranger()
    mail = f"<a href='{dashboard.address}{dashboard.link}'>the link</a>"
    page.route("http://mail.test/", lambda route: route.fulfill(content_type="text/html", body=mail))
    page.goto("http://mail.test/")
    page.get_by_role("link").click()
    page.get_by_role("link", name="Try again").click()  # the browser has the cookie, and sends it from here on
    page.locator(".brand").wait_for()
    dashboard.trouble.clear()  # the other site
