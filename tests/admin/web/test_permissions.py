"""Permissions: what each user may see and do, checked on the server for every page and every action."""

import logging
from collections.abc import Callable, Collection
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount, Route

import outbox
from outbox.admin.web import make_app
from outbox.admin.web.permissions import ALL
from outbox.core import Outbox
from outbox.encryption.stored_text import MARKER
from outbox.operations.actions import ACTIONS
from outbox.operations.periodic_jobs import PERIODIC_ACTIONS
from outbox.storage.attempts import Tried, add_attempts
from outbox.storage.models import OutboxEvent, Waiting
from outbox.telemetry import audit
from outbox.telemetry.audit import Operator
from tests.admin.web.browser import Browser, Document, form_to
from tests.admin.web.client import Client, anybody
from tests.admin.web.sample import delivered, failed, now, waiting
from tests.support.jobs import send
from tests.support.table import change, other_worker, statuses, stored


@pytest.fixture
def url(sqlite_url: str) -> str:
    """One database is enough where the database is not what is tested."""
    return sqlite_url


def blocking() -> OutboxEvent:
    """Return an event that has failed, and holds back later events of its ordering key."""
    return failed(ordering_key="k")


TOKEN = "A" * 43
MAKE: dict[str, Callable[[], OutboxEvent]] = {
    "retry": failed,
    "retry-now": waiting,
    "replay": delivered,
    "skip": blocking,
    "fail": waiting,
    "delete": delivered,
}
NEEDED = {
    "retry": "operate",
    "retry-now": "operate",
    "replay": "operate",
    "skip": "operate",
    "fail": "admin",
    "delete": "admin",
}
PERIODIC_NEEDED = {"run": "operate", "pause": "operate", "resume": "operate", "forget": "admin"}


def client_of(box: Outbox, *permissions: str) -> Client:
    """Return a client whose user has these permissions."""
    return Client(make_app(box, authenticate=anybody, authorize=lambda connection, user: permissions))


def post(client: Client, path: str, fields: str) -> Any:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": f"outbox_csrf={TOKEN}"}
    return client.post(path, content=f"{fields}&csrf_token={TOKEN}", headers=headers)


def buttons(html: str) -> set[str]:
    return {value for form in Document(html).forms for name, value in form.buttons if name == "action"}


def test_each_action_says_which_permission_it_needs() -> None:
    assert set(NEEDED) == set(ACTIONS)
    assert set(PERIODIC_NEEDED) == set(PERIODIC_ACTIONS)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("granted", ["view", "operate", "admin"])
def test_an_action_is_refused_unless_its_permission_is_granted(box: Outbox, action: str, granted: str) -> None:
    event = MAKE[action]()
    before = stored(event).status
    client = client_of(box, granted)
    fields = f"action={action}&scope=selected&id={event.id}"
    is_allowed = granted == "admin" or granted == NEEDED[action]
    shown, done = client.get(f"/confirm?{fields}"), post(client, "/act", fields)
    if is_allowed:
        assert (shown.status_code, done.status_code) == (200, 200)
        assert f"{ACTIONS[action].done}." in Document(done.text).text
    else:
        assert (shown.status_code, done.status_code) == (403, 403)
        missing = NEEDED[action] if granted == "operate" else "operate"
        assert f"It needs the permission “{missing}”" in Document(done.text).text
        assert stored(event).status == before


@pytest.mark.parametrize(("action", "needed"), PERIODIC_NEEDED.items())
@pytest.mark.parametrize("granted", ["view", "operate", "admin"])
def test_an_action_on_a_periodic_job_is_refused_unless_its_permission_is_granted(
    box: Outbox, action: str, needed: str, granted: str
) -> None:
    response = post(client_of(box, granted), "/periodic/act", f"action={action}&name=nothing")
    # There is no such job: 400 means that the permission was there.
    assert response.status_code == (400 if granted in ("admin", needed) else 403)


@pytest.mark.parametrize(
    "path", ["/", "/events", "/audit", "/periodic", "/destination?name=runner", "/actor?name=charge"]
)
def test_buttons_that_a_user_may_not_press_are_not_shown(box: Outbox, path: str) -> None:
    failed(), delivered(), waiting()
    change(failed(event_type="charge"), kind="job")
    other_worker(box, runner="*")
    shown = client_of(box, "view").get(path)
    assert (shown.status_code, buttons(shown.text)) == (200, set())
    if path == "/events":
        assert buttons(client_of(box, "operate").get(path).text) == {
            "retry",
            "retry-now",
            "replay",
            "skip",
        }
        assert buttons(client_of(box, "admin").get(path).text) == set(ACTIONS)


def test_the_page_of_an_event_shows_only_the_buttons_of_the_user(box: Outbox) -> None:
    event = delivered()
    assert buttons(client_of(box, "view").get(f"/events/{event.id}").text) == set()
    assert buttons(client_of(box, "operate").get(f"/events/{event.id}").text) == {"replay"}
    assert buttons(client_of(box, "admin").get(f"/events/{event.id}").text) == {"replay", "delete"}


def test_a_user_who_may_select_nothing_to_change_gets_no_checkboxes(box: Outbox) -> None:
    failed()
    assert 'type="checkbox"' not in client_of(box, "view").get("/events").text
    assert 'type="checkbox"' in client_of(box, "operate").get("/events").text


@pytest.mark.parametrize("granted", [["view"], ["operate"], ["admin"]])
def test_payloads_headers_and_arguments_need_a_permission_of_their_own(
    box: Outbox, charge: Any, granted: list[str]
) -> None:
    event = failed(payload={"iban": "DE12 hush"}, headers={"trace": "hush"})
    job = send(charge, "hush").id
    paths = (f"/events/{event.id}", f"/events/{job}", "/events?kind=job", "/events", "/", "/audit", f"/events?q={job}")
    without, with_payloads = client_of(box, *granted), client_of(box, *granted, "payloads")
    for path in paths:
        assert "hush" not in without.get(path).text, path
    assert "need the permission “payloads”" in without.get(paths[0]).text
    for path in paths[:3]:
        assert "hush" in with_payloads.get(path).text, path


def quoting(box: Outbox, secret: str) -> tuple[OutboxEvent, OutboxEvent]:
    """Two events that have failed and hold back a key, with errors that quote them. The key of the second is lost."""
    error = f"ValueError: no bank knows {secret}, {secret[:16]}; {{'name': '{secret}'}}"
    rows = []
    Waiting.bind(box.database)
    for key in ("k1", "k2"):
        event = failed(payload={"name": secret}, ordering_key=key)
        entry = {"state": "failed", "attempts": 1, "error": error}
        change(event, error_message=f"bank: {error}", progress={"bank": entry})
        add_attempts(
            box.dialect, [(str(box.dialect.id(event.id)), Tried("bank", now(), 0.1, "failed", None, error))], "worker-1"
        )
        Waiting.create(ordering_key=key, destination="bank", seq=event.seq + 1, event_id=event.id, since=now())
        rows.append(event)
    change(rows[1], payload={MARKER: "v1:0a0a0a0a:AAAA"})
    return rows[0], rows[1]


def test_what_errors_quote_of_payloads_needs_that_permission_too(box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "Ada Augusta King of Lovelace"
    event, encrypted = quoting(box, secret)
    page = f"/events/{event.id}"
    paths = [page, "/", "/events", "/events?status=failed", f"/events?q={encrypted.id}", "/keys", "/keys?key=k2"]
    paths += ["/destination?name=bank", "/actor?name=charge", "/scheduled?which=retries"]
    late, job = waiting(payload={"name": secret}), failed(event_type="charge")
    change(late, error_message=f"ValueError: no bank knows {secret}")
    change(
        job,
        kind="job",
        payload={"args": [secret], "kwargs": {}, "options": {}},
        error_message=f"ValueError: no bank knows {secret}",
    )
    without, with_payloads = client_of(box, "admin"), client_of(box, "view", "payloads")
    for path in paths:
        shown = Document(without.get(path).text).text
        assert "Augusta" not in shown, path
        assert "ValueError: no bank knows ***" in shown or "not shown without the permission" in shown, path
        assert secret in with_payloads.get(path).text, path
    assert Document(without.get(page).text).text.count("no bank knows ***, ***; {'name': '***'}") == 3
    monkeypatch.setattr("outbox.admin.hidden_content.LONGEST", 10)
    for path in ("/", "/events", "/keys"):
        assert "knows" not in without.get(path).text, path


def test_every_page_is_refused_to_a_user_without_any_permission(box: Outbox) -> None:
    app = make_app(box, authenticate=anybody, authorize=lambda connection, user: [])
    client = Client(app)
    paths = [each.path.replace("{id}", str(failed().id)) for each in app.routes if isinstance(each, Route)]
    assert len(paths) > 8
    for path in paths:
        for method in ("GET", "POST"):
            response = client.request(method, path)
            assert response.status_code == 403, path
            assert "permission “view”" in response.text


def test_every_route_checks_the_permission_itself(box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the middleware's check, pages and actions refuse as well."""
    monkeypatch.setattr("outbox.admin.web.authentication.VIEW", "payloads")
    monkeypatch.setattr("outbox.admin.web.permissions._IMPLIED", {})
    app = make_app(box, authenticate=anybody, authorize=lambda connection, user: ["payloads"])
    for route in app.routes:
        if isinstance(route, Route):
            method = "POST" if "POST" in (route.methods or ()) else "GET"
            response = Client(app).request(method, route.path.replace("{id}", str(failed().id)))
            assert response.status_code == 403, route.path


@pytest.mark.parametrize(
    "result",
    ["admin", "view", True, 7, {"admin": True, "all": True}, ["admin", "all"], ["view", None], object(), b"view"],
)
def test_anything_but_names_of_permissions_grants_nothing_and_is_logged_once(
    box: Outbox, caplog: pytest.LogCaptureFixture, result: Any
) -> None:
    client = Client(make_app(box, authenticate=anybody, authorize=lambda connection, user: result))
    assert [client.get(path).status_code for path in ("/", "/events", "/metrics")] == [403] * 3
    (record,) = [record for record in caplog.records if "authorize returned" in record.getMessage()]
    assert record.levelno == logging.ERROR


def test_no_permissions_at_all_are_refused_without_a_log_line(box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    nothing: Any = lambda connection, user: None  # noqa: E731
    assert Client(make_app(box, authenticate=anybody, authorize=nothing)).get("/").status_code == 403
    assert "authorize returned" not in caplog.text


def test_authorize_gets_the_request_and_the_name_and_may_be_a_coroutine_function(box: Outbox) -> None:
    seen: list[tuple[str, str]] = []

    async def authorize(connection: HTTPConnection, user: str) -> Collection[str]:
        seen.append((connection.url.path, user))
        return {"view"}

    client = Client(make_app(box, authenticate=anybody, authorize=authorize))
    assert client.get("/audit").status_code == 200
    assert seen == [("/audit", "dashboard")]


def test_a_refused_action_is_logged_with_the_user_and_the_permission(
    box: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    post(client_of(box, "view"), "/act", "action=delete&scope=all")
    assert "refused POST /act to dashboard: it needs the permission operate" in caplog.text


def test_a_user_of_the_application_has_all_permissions_unless_it_says_otherwise(box: Outbox) -> None:
    event = failed(payload={"name": "Ada"})
    browser = Browser(Client(make_app(box, authenticate=anybody)))
    page = browser.get(f"/events/{event.id}")
    assert "Ada" in page.text
    browser.submit(form_to(browser.submit(form_to(page, "/confirm"), ("action", "delete")), "/act"))
    assert statuses() == {}
    assert {"view", "operate", "admin", "payloads"} == ALL


def test_a_read_only_dashboard_refuses_administrators_too(box: Outbox) -> None:
    event = failed()
    app = make_app(box, authenticate=anybody, authorize=lambda connection, user: ALL, read_only=True)
    response = post(Client(app), "/act", f"action=retry&scope=selected&id={event.id}")
    assert (response.status_code, "read-only" in response.text) == (403, True)
    assert buttons(Client(app).get(f"/events/{event.id}").text) == set()


def test_permissions_hold_inside_another_application(box: Outbox) -> None:
    inner = make_app(box, authenticate=anybody, authorize=lambda connection, user: ["view"])
    client = Client(Starlette(routes=[Mount("/ops", inner)]))
    assert client.get("/ops/events").status_code == 200
    assert post(client, "/ops/act", "action=retry&scope=all").status_code == 403


def test_the_audit_names_the_user_and_where_the_request_came_from(box: Outbox) -> None:
    event = failed()
    app = make_app(box, authenticate=lambda connection: "grace")
    client = Client(app, client=("203.0.113.7", 50_000))
    post(client, "/act", f"action=retry&scope=selected&id={event.id}")
    (entry,) = audit.latest(box.dialect)
    assert (entry.who, entry.via, entry.outcome) == ("grace", "dashboard, from 203.0.113.7", "done")
    page = Browser(client).get(f"/audit/{entry.id}")
    assert all(text in page.text for text in ("grace", "203.0.113.7", "done", str(event.id)))


def test_an_audit_entry_that_does_not_exist_is_not_found(box: Outbox) -> None:
    client = client_of(box, "view")
    assert client.get(f"/audit/{outbox.emit('Note', 1, 'note.written').id}").status_code == 404
    assert client.get("/audit/nonsense").status_code == 404


@pytest.mark.parametrize(
    ("action", "is_there"), [("erase", True), ("delete", False), ("cleanup", False), ("archive", False)]
)
def test_the_ids_of_what_was_deleted_lead_to_no_page(box: Outbox, action: str, is_there: bool) -> None:
    event = failed()
    with box.dialect.connection(), audit.record(box.dialect, Operator("ada"), action, {}) as entry:
        entry.add([event.id])
    page = client_of(box, "view").get(f"/audit/{entry.id}").text
    assert str(event.id) in page
    assert (f"/events/{event.id}" in page, "Events that were deleted" in page) == (is_there, not is_there)
