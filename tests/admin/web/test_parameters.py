"""Invalid parameters get an error page, never an internal error."""

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outbox.admin.web import make_app
from outbox.core import Outbox
from tests.admin.web.client import Client, anybody
from tests.admin.web.sample import delivered, failed, waiting

NAMES = [
    "status", "type", "aggregate", "tenant", "destination", "error", "key", "correlation", "since", "until", "after",
    "q", "did", "number", "id", "action", "scope", "from", "to", "reason", "before", "csrf_token", "kind", "actor",
    "ordering_key",
]  # fmt: skip
NASTY = [
    "", " ", "\x00", "a\x00b", "\ud800", "\uffff", "'", '"', "\\", "%", "_", "?", "%s", "%(x)s", "{}", "{0}", ":", "::",
    "-1", "0", "1e999", "nan", "9" * 400, "x" * 10_000, "\n", "\r\nX-Evil: 1", "../../etc/passwd",
    "'; DROP TABLE outbox_event; --",
    "0001-01-01", "9999-12-31T23:59:59", "2026-13-01", "2026-01-01T00:00+99:99", "0001-01-01T00:00+23:59",
    "9999-12-31T23:59:59-23:59", "1969-12-31", "3000-01-01", "2026-W01-1", "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff", "{00000000-0000-0000-0000-000000000000}", "urn:uuid:x", "failed", "pending",
    "(others)", "é", "😀", "\u202e",
]  # fmt: skip
PATHS = ["/", "/events", "/audit", "/confirm", "/metrics", "/keys", "/control", "/periodic"]
# The forms that need no confirmation: their actions, and their fields.
FORMS = {
    "/control/act": (
        ["pause", "resume", "throttle", "unthrottle", "recover", ""],
        ["name", "minutes", "per_second", "reason"],
    ),
    "/periodic/act": (["run", "pause", "resume", "forget", ""], ["name"]),
    "/bulk/act": (["stop", "resume", ""], ["id"]),
}


def encoded(fields: list[tuple[str, str]]) -> str:
    return urlencode([(name, value.encode(errors="surrogatepass")) for name, value in fields])


@pytest.fixture
def some(box: Outbox) -> Client:
    failed(), delivered(), waiting()
    return Client(make_app(box, authenticate=anybody))


@pytest.mark.parametrize("name", NAMES)
def test_no_value_of_a_parameter_breaks_a_page(some: Client, name: str) -> None:
    for value in NASTY:
        for path in ("/events", "/confirm"):
            given = [(name, value)]
            if path == "/confirm":
                given = [("action", "retry"), ("scope", "all"), (name, value)]
            assert some.get(f"{path}?{encoded(given)}").status_code in (200, 400, 404)


@pytest.mark.parametrize("value", NASTY)
def test_no_path_breaks_it(some: Client, value: str) -> None:
    quoted = encoded([("", value)])[1:].replace("+", "%20")
    assert some.get(f"/events/{quoted}").status_code in (200, 404)
    assert some.get(f"/{quoted}").status_code in (200, 404)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(PATHS),
    fields=st.lists(st.tuples(st.sampled_from(NAMES), st.one_of(st.sampled_from(NASTY), st.text(max_size=40)))),
)
def test_no_combination_breaks_it(some: Client, path: str, fields: list[tuple[str, str]]) -> None:
    assert some.get(f"{path}?{encoded(fields)}").status_code in (200, 400, 404)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.lists(st.tuples(st.sampled_from(NAMES), st.one_of(st.sampled_from(NASTY), st.text(max_size=40)))))
def test_no_form_breaks_it(some: Client, fields: list[tuple[str, str]]) -> None:
    some.get("/events")
    token = some.cookies["outbox_csrf"]
    body: Any = encoded([*fields, ("action", "retry"), ("scope", "all"), ("csrf_token", token)])
    assert some.post("/act", content=body).status_code in (200, 400, 403, 404)


@pytest.mark.parametrize("path", FORMS)
def test_no_value_in_a_form_that_acts_at_once_breaks_it(some: Client, path: str) -> None:
    some.get("/events")
    actions, names = FORMS[path]
    for value in NASTY:
        for action in actions:
            given = [
                *((name, value) for name in names),
                ("action", action),
                ("csrf_token", some.cookies["outbox_csrf"]),
            ]
            answer = some.post(path, content=encoded(given), follow_redirects=False)
            assert answer.status_code in (303, 400, 404), (action, value)
    assert some.get("/control").status_code == 200
    assert some.get("/keys?" + encoded([("key", "'; DROP TABLE outbox_event; --")])).status_code == 200
