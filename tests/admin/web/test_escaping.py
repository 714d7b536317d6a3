"""All content of events is escaped: it never becomes a tag or an attribute."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from starlette.routing import Route

from outbox.admin.web import make_app
from outbox.admin.web.render import FOLDER
from outbox.core import Outbox
from outbox.destinations.controls import Controls, Pause, Throttle
from outbox.storage.models import Waiting
from outbox.storage.operator_models import Attempt, Audit, Minute, Periodic, Process
from outbox.telemetry.labels import labels_as_text
from tests.admin.web.browser import Browser, Document, form_to
from tests.admin.web.client import anybody
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
    "\x9b31m\x85\u2066x",
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
        "stream": {"stream": attack, "group": attack, "dead_letter": attack}
        | dict.fromkeys(("behind", "pending", "processed", "parked"), 1),
    }
    other_worker(box, **{attack: "*"})
    times: dict[str, Any] = {"started_at": now() - timedelta(hours=1), "seen_at": now()}
    Process.create(id="1", kind="worker", host=attack, pid=1, details=details, **times)
    Process.create(id="2", kind=attack[:20], host=attack, pid=1, details=details, **times)
    Audit.bind(box.database)
    filters = json.dumps({"tenant_id": attack, attack: attack, "ids": [str(event.id), attack]})
    given = {"who": attack, "claimed": attack, "via": attack, "parameters": {attack: attack}, "cause": attack}
    Audit.create(
        id=event.id,
        at=now(),
        action=attack[:20],
        filters=json.loads(filters),
        affected=1,
        outcome="interrupted",
        ended_at=now(),
        **given,
    )
    Attempt.bind(box.database)
    Attempt.create(
        **({} if box.dialect.name == "postgres" else {"id": 1}),
        event_id=event.id, destination=attack, at=now(), seconds=1.0, outcome="failed", error=attack, worker=attack,
    )  # fmt: skip
    Minute.bind(box.database)
    labels = labels_as_text((("type", attack),))
    half_an_hour_ago = now().replace(second=0, microsecond=0) - timedelta(minutes=30)
    for name, of in (("types_delivered", labels), ("delivered", "")):
        Minute.create(minute=half_an_hour_ago, name=name, labels=of, value=1)
    Waiting.bind(box.database)
    Waiting.create(ordering_key=attack, destination=attack, seq=event.seq + 1, event_id=event.id, since=now())
    Periodic.bind(box.database)
    named = dict.fromkeys(("name", "schedule", "words", "timezone", "skipped_why", "ended_error"), attack)
    at = dict.fromkeys(("declared_at", "seen_at", "scheduled_from", "last_run_at", "skipped_at", "ended_at"), now())
    Periodic.create(kind=attack[:10], paused=False, last_run_id=event.id, ended_id=event.id, **named, **at)
    controls = Controls({attack: Pause(now(), None, attack, attack)}, {attack: Throttle(1.0, now(), None, attack)})
    with box.dialect.connection(), box.dialect.atomic():
        box.dialect.run(box.dialect.statements.controls_set, (controls.to_json(),))
    return str(event.id)


def shape(page: Document) -> list[tuple[str, list[str]]]:
    """The tags and the names of their attributes, without what they say.

    Of suggestions there may be fewer: those that can't be read are left out. A name may be broken after
    punctuation. A bar of a chart is somewhere else a minute later.
    """
    return [(tag, sorted(attributes)) for tag, attributes in page.tags if tag not in ("option", "wbr", "rect")]


def pages(browser: Browser, id: str, attack: str) -> list[Document]:
    found = [
        browser.get("/"),
        browser.get("/events"),
        browser.get("/events", tenant=attack),
        browser.get("/events", q=attack),
        browser.get(f"/events/{id}"),
        browser.get("/audit"),
        browser.get(f"/audit/{id}"),
        browser.get("/keys"),
        browser.get("/keys", key=attack),
        browser.get("/periodic"),
        browser.get("/control"),
        browser.get("/", of=f"type:{attack}"),
        browser.get("/destination", name=attack),
        browser.get("/actor", name=attack),
        browser.get("/scheduled"),
        browser.get("/scheduled", which="retries"),
        browser.get("/streams"),
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
    for table in ("event", "process", "audit", "destination", "waiting", "periodic", "attempt", "minute"):
        box.database.execute_sql(f"DELETE FROM outbox_{table}")  # noqa: S608  (our own tables)
    harmless = [shape(page) for page in pages(browser, plant(box, "harmless"), "harmless")]
    assert attacked == harmless


def test_every_page_is_attacked(box: Outbox, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is added must be added to `pages` as well."""
    visited: list[str] = []
    get = browser.get

    def remember(path: str, **more: Any) -> Document:
        visited.append(path)
        return get(path, **more)

    monkeypatch.setattr(browser, "get", remember)
    pages(browser, plant(box, "harmless"), "harmless")
    routes = [route for route in make_app(box, authenticate=anybody).routes if isinstance(route, Route)]
    shown = [route for route in routes if "GET" in (route.methods or ()) and route.path != "/metrics"]
    assert len(shown) > 5
    assert [route.path for route in shown if not any(map(route.path_regex.match, visited))] == []


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


def test_characters_that_are_not_printable_are_shown_as_escapes(box: Outbox, browser: Browser) -> None:
    attack = "a\u202e\u2066b\x9b\x85\x1b\x7fc"
    for page in pages(browser, plant(box, attack), attack):
        assert page.text.isprintable()
    page = browser.get(f"/events/{emit_one(attack, payload={attack: attack}).id}")
    assert "a\\u202e\\u2066b\\x9b\\x85\\x1b\\x7fc" in page.text
    assert json.dumps(attack).replace("\x7f", "\\u007f") in page.text  # as JSON escapes it


def test_a_form_sends_such_characters_back_as_they_are(box: Outbox, browser: Browser) -> None:
    attack = "a\u202eb\x9bc"
    emit_one(attack)
    page = browser.get("/confirm", action="fail", scope="all", type=attack)
    assert ("type", attack) in form_to(page, "/act").fields


def test_suggestions_are_texts_that_can_be_read(box: Outbox, browser: Browser) -> None:
    """A browser shows the value of a suggestion itself, so a type is left out if it has such characters."""
    emit_one("a\u202eb")
    emit_one("an ordinary type")
    page = browser.get("/events")
    suggested = [attributes.get("value") for tag, attributes in page.tags if tag == "option"]
    assert "an ordinary type" in suggested
    assert not any("\u202e" in str(value) for value in suggested)


def test_every_value_of_a_form_is_exact() -> None:
    """What a form sends back must not be changed, whoever adds a field."""
    templates = "\n".join(path.read_text() for path in (FOLDER / "templates").glob("*.html"))
    values = re.findall(r'value="\{\{([^}]*)\}\}"', templates)
    assert len(values) > 20
    assert [value for value in values if not value.rstrip().endswith("| exact")] == []
    assert re.findall(r"<option(?! value=)[^>]*>\{\{ (?!kind )", templates) == []
