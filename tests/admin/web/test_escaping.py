"""All content of events is escaped: it never becomes a tag or an attribute."""

import json
from datetime import timedelta
from typing import Any

import pytest

from outbox.core import Outbox
from outbox.storage.operator_models import Audit, Process
from tests.admin.web.browser import Browser, Document
from tests.admin.web.sample import now
from tests.support.table import change, emit_one, other_worker

ATTACKS = [
    "<script>boom()</script>",
    '"><img src=x onerror=boom()>',
    "'><svg/onload=boom()>",
    "</pre></textarea></title><b>boom</b>",
    "{{ 7 - 7 }}{% raw %}",
    "javascript:boom()",
    "]]><!--",
    '" hx-get="/boom" hx-trigger="load" data-x="',
    "&lt;script&gt;boom()&lt;/script&gt;",
    "\u202e\u2066gnp.exe",
]


def plant(box: Outbox, attack: str) -> str:
    """An event, a process and an entry of the audit that say nothing else."""
    short = attack[:100]
    event = emit_one(
        event_type=short,
        aggregate_type=short,
        aggregate_id=short,
        idempotency_key=attack,
        correlation_id=attack,
        tenant_id=attack,
        payload={attack: attack, "list": [attack, {attack: [attack]}]},
        headers={attack: attack},
    )
    change(
        event,
        status="failed",
        next_attempt_at=None,
        ordering_key=attack,
        error_message=attack,
        progress={
            attack: {"state": "failed", "attempts": 1, "error": attack},
            f"2{attack}": {"state": attack, "error": attack, "since": "2026-01-01 00:00:00.000000+00:00"},
        },
    )
    Process.bind(box.database)
    details = {
        "publish_seconds": 10,
        "version": attack,
        "destinations": {attack: {"kind": attack}},
        "breakers": {attack: {"open": True, "trips": 1, "seconds": 5.0, "error": attack}},
    }
    other_worker(box, **{attack: "*"})
    times: dict[str, Any] = {"started_at": now() - timedelta(hours=1), "seen_at": now()}
    Process.create(id="1", kind="worker", host=attack, pid=1, details=details, **times)
    Process.create(id="2", kind=attack[:20], host=attack, pid=1, details=details, **times)
    Audit.bind(box.database)
    filters = json.dumps({"tenant_id": attack, attack: attack, "ids": [str(event.id), attack]})
    Audit.create(id=event.id, at=now(), who=attack, action=attack[:20], filters=json.loads(filters), affected=1)
    return str(event.id)


def shape(page: Document) -> list[tuple[str, list[str]]]:
    """The tags and the names of their attributes, without what they say."""
    return [(tag, sorted(attributes)) for tag, attributes in page.tags]


def pages(browser: Browser, id: str, attack: str) -> list[Document]:
    found = [
        browser.get("/"),
        browser.get("/events"),
        browser.get("/events", tenant=attack),
        browser.get("/events", q=attack),
        browser.get(f"/events/{id}"),
        browser.get("/audit"),
        browser.get("/confirm", action="retry", scope="selected", id=id),
        browser.get("/confirm", action="retry", scope="all", tenant=attack, error=attack),
        browser.get("/confirm", action="fail", scope="all", reason=attack, status="failed"),
        browser.get("/confirm", action="replay", scope="all", to=attack),
    ]
    change(delivered_at=now(), status="delivered")
    found += [
        browser.get(f"/events/{id}"),
        browser.get("/confirm", action="replay", scope="selected", id=id, to=attack),
    ]
    return found


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_event_that_attacks_gives_the_same_page_as_a_harmless_one(
    box: Outbox, browser: Browser, attack: str
) -> None:
    attacked = [shape(page) for page in pages(browser, plant(box, attack), attack)]
    for table in ("outbox_event", "outbox_process", "outbox_audit", "outbox_destination"):
        box.database.execute_sql(f"DELETE FROM {table}")  # noqa: S608  (our own tables)
    harmless = [shape(page) for page in pages(browser, plant(box, "harmless"), "harmless")]
    assert attacked == harmless


def test_the_attack_is_shown_as_it_is(box: Outbox, browser: Browser) -> None:
    attack = "<script>boom()</script>"
    id = plant(box, attack)
    page = browser.get(f"/events/{id}")
    assert f"Last error {attack}" in page.text
    assert f"Tenant {attack}" in page.text
    assert json.dumps(attack) in page.text


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_stands_in_an_address_is_text_as_well(browser: Browser, attack: str) -> None:
    harmless = browser.get("/events", q="x", tenant="x", did="x", number="1")
    attacked = browser.get("/events", q=attack, tenant=attack, did=attack, number=attack)
    assert shape(attacked) == shape(harmless)
    browser.get(f"/events/{attack.replace('/', '')}", expect=404)
