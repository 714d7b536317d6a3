"""`@outbox.redact`: what of a payload is displayed; destinations get everything."""

import json
import logging
from typing import Any

import pytest

import outbox
from outbox.admin.web import make_app
from outbox.core import Outbox
from outbox.destinations.redaction import Redactions
from outbox.errors import RegistrationError
from tests.admin.web.client import Client, anybody
from tests.support.program import BIN, run
from tests.support.table import emit_one

MODULE = """
import outbox

@outbox.redact("user.*")
def without_address(event_type, payload):
    return {name: value for name, value in payload.items() if name != "address"}
"""


@pytest.fixture
def redactions() -> Redactions:
    return Redactions()


def test_a_function_returns_what_is_displayed(redactions: Redactions) -> None:
    redactions.register("user.*")(lambda event_type, payload: {"type": event_type, "name": payload["name"]})
    payload = {"name": "Ada", "address": "hush"}
    assert redactions.displayed("user.created", payload) == {"type": "user.created", "name": "Ada"}
    assert redactions.displayed("order.placed", payload) == payload


@pytest.mark.parametrize(
    ("patterns", "matches"),
    [(["user.created"], True), (["user.*"], True), (["*"], True), (["a", "user.created"], True), (["user"], False)],
)
def test_it_is_for_the_types_that_its_patterns_match(
    redactions: Redactions, patterns: list[str], matches: bool
) -> None:
    redactions.register(*patterns)(lambda event_type, payload: "hidden")
    assert (redactions.displayed("user.created", {}) == "hidden") is matches


def test_several_functions_apply_one_after_the_other(redactions: Redactions) -> None:
    redactions.register("*")(lambda event_type, payload: payload | {"first": True})
    redactions.register("user.*")(lambda event_type, payload: payload | {"second": payload["first"]})
    assert redactions.displayed("user.created", {}) == {"first": True, "second": True}


def test_a_function_may_change_what_it_is_given(redactions: Redactions) -> None:
    @redactions.register("*")
    def drop(event_type: str, payload: Any) -> Any:
        del payload["user"]["address"]
        return payload

    given = {"user": {"name": "Ada", "address": "hush"}}
    assert redactions.displayed("a", given) == {"user": {"name": "Ada"}}
    assert given == {"user": {"name": "Ada", "address": "hush"}}


@pytest.mark.parametrize("result", [{1: object()}, "text", None, [1, 2], object()])
def test_any_result_can_be_displayed(redactions: Redactions, result: object) -> None:
    redactions.register("*")(lambda event_type, payload: result)
    assert "hush" not in json.dumps(redactions.displayed("a", {"address": "hush"}))


def circular(event_type: str, payload: Any) -> Any:
    payload["self"] = payload
    return payload


def wrong(event_type: str, payload: Any) -> Any:
    raise ValueError(f"hush: {payload}")


@pytest.mark.parametrize("function", [wrong, circular])
def test_a_function_that_fails_shows_nothing_rather_than_everything(
    redactions: Redactions, function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    redactions.register("*")(lambda event_type, payload: payload)
    redactions.register("user.*")(function)
    shown = redactions.displayed("user.created", {"address": "hush"})
    assert shown == "not shown: the redaction of user.created raised ValueError"
    assert "hush" not in caplog.text
    (record,) = caplog.records
    assert record.levelno == logging.WARNING


def test_a_type_can_not_forge_a_line_of_the_log(redactions: Redactions, caplog: pytest.LogCaptureFixture) -> None:
    redactions.register("*")(wrong)
    redactions.displayed("user.created\nERROR forged \x1b[2J", {})
    assert caplog.messages[0].isprintable()


def test_patterns_are_needed_and_checked(redactions: Redactions) -> None:
    with pytest.raises(RegistrationError, match="redact needs the event types"):
        redactions.register()
    with pytest.raises(RegistrationError, match="not a pattern"):
        redactions.register("us*er")
    with pytest.raises(RegistrationError):
        redactions.register(wrong)  # type: ignore[arg-type]  # without parentheses


# Where it is used


def test_the_pages_show_what_it_returns_masked(box: Outbox) -> None:
    outbox.redact("user.*")(lambda event_type, payload: {"name": payload["name"], "password": "hush-2"})
    event = emit_one("user.created", payload={"name": "Ada", "address": "hush-1"})
    client = Client(make_app(box, authenticate=anybody))
    html = client.get(f"/events/{event.id}").text
    assert "Ada" in html
    assert "hush" not in html


def test_a_redaction_that_fails_shows_no_payload_on_the_pages(box: Outbox) -> None:
    outbox.redact("*")(wrong)
    event = emit_one("user.created", payload={"address": "hush"})
    html = Client(make_app(box, authenticate=anybody)).get(f"/events/{event.id}").text
    assert "not shown: the redaction of user.created raised ValueError" in html
    assert "hush" not in html


def test_destinations_get_everything(box: Outbox) -> None:
    got: list[object] = []
    outbox.redact("*")(lambda event_type, payload: "hidden")
    outbox.handler("user.created", name="reader")(lambda event: got.append(event.payload))
    emit_one("user.created", payload={"address": "hush"})
    assert box.process_pending_events()["processed"] == 1
    assert got == [{"address": "hush"}]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_outbox_show_applies_it(box: Outbox, url: str, tmp_path: Any, options: list[str]) -> None:
    (tmp_path / "redacting.py").write_text(MODULE)
    event = emit_one("user.created", payload={"name": "Ada", "address": "hush"})
    command = ["show", str(event.id), "-m", "redacting", *options]
    shown = run(BIN / "outbox", *command, database_url=url, cwd=tmp_path).stdout
    assert "Ada" in shown
    assert "hush" not in shown
