"""The reference lists every parameter of every public function and class, with its default."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import outbox
import outbox.dramatiq
from outbox import testing
from outbox.admin import metrics, web

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"

# Names that take no arguments of the user: constants, modules, types, models, and what only the library makes.
NOT_CALLED = {
    "AsyncRequired", "DecryptionError", "DuplicateEvent", "EncryptionKeyMissing", "Event", "EventNotStored",
    "Destination", "InboxMessage", "InvalidEvent", "InvalidMessage",
    "Lease", "NewerEvent", "OutboxError", "OutboxEvent", "Outcome", "RegistrationError", "Reject", "SchemaError",
    "SettingsError", "TenantMismatch", "TransactionOpen", "TransactionRequired", "UNIQUE", "UnreadableEvent", "inbox",
    "testing",
    "webhooks",
}  # fmt: skip
# They take what the blocking function takes whose name comes after the `a`.
AWAITABLE = {"acancel", "aemit", "aemit_many", "asend", "asend_with_options"}
# Of `outbox.testing`: what only the kit makes.
MADE_BY_THE_KIT = {"CannotProve", "Captured", "NotAccepted", "NotFinished", "NotSafe", "Proof"}
# Their parameters are the settings, which have a page of their own.
SETTINGS = {"Settings"}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in outbox.__all__:
        if name not in NOT_CALLED | SETTINGS | AWAITABLE:
            yield f"outbox.{name}", getattr(outbox, name)
    yield from ((f"outbox.inbox.{name}", getattr(outbox.inbox, name)) for name in ("claim", "cleanup", "once"))
    yield "outbox.inbox.create_tables", outbox.inbox.create_tables
    yield from ((f"outbox.webhooks.{name}", getattr(outbox.webhooks, name)) for name in ("new_secret", "verify"))
    yield from ((f"outbox.dramatiq.{name}", getattr(outbox.dramatiq, name)) for name in outbox.dramatiq.__all__)
    yield from (
        (f"outbox.testing.{name}", getattr(testing, name)) for name in testing.__all__ if name not in MADE_BY_THE_KIT
    )
    yield from ((f"outbox.admin.web.{name}", getattr(web, name)) for name in web.__all__)
    yield "outbox.admin.metrics.Collector", metrics.Collector
    yield "outbox.admin.metrics.exposition", metrics.exposition


@cache
def sections() -> dict[str, str]:
    """Return the text below each heading that is a name, by that name."""
    found: dict[str, str] = {}
    for page in sorted(REFERENCE.glob("*.md")):
        for part in re.split(r"^(?=#)", page.read_text(), flags=re.MULTILINE):
            if name := re.match(r"#+ `([\w.]+)`\n", part):
                assert name[1] not in found, f"{name[1]} is documented twice"
                found[name[1]] = part
    return found


def shown(parameter: inspect.Parameter) -> str:
    """Return a default as the tables have it."""
    if parameter.default is parameter.empty:
        return ""
    if isinstance(parameter.default, str):
        return f'`"{parameter.default}"`'
    if isinstance(parameter.default, tuple):
        return "`" + repr(parameter.default).replace("'", '"') + "`"
    return f"`{parameter.default!r}`".replace("datetime.timedelta(seconds=300)", "timedelta(minutes=5)")


@pytest.mark.parametrize(
    ("name", "callable"), list(public()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_parameter_is_listed_with_its_default(name: str, callable: Callable[..., Any]) -> None:
    parameters = inspect.signature(callable).parameters
    rows = re.findall(r"^\| `(\w+)` \| ?(.*?) ?\| .+ \|$", sections()[name], re.MULTILINE)
    assert rows == [(parameter, shown(parameters[parameter])) for parameter in parameters]


@pytest.mark.parametrize("name", sorted(AWAITABLE))
def test_an_awaitable_function_takes_what_its_blocking_function_takes(name: str) -> None:
    awaitable, blocking = (inspect.signature(getattr(outbox, each)) for each in (name, name.removeprefix("a")))
    assert awaitable.parameters == blocking.parameters


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    assert [name for name in outbox.__all__ if not re.search(rf"\boutbox\.{name}\b", text)] == []


def test_every_name_of_the_test_kit_is_in_the_reference() -> None:
    assert {f"outbox.testing.{name}" for name in testing.__all__} <= sections().keys()


def test_every_error_is_in_the_tree_and_has_its_meaning() -> None:
    errors = [each for each in vars(outbox.errors).values() if inspect.isclass(each)]
    names = [each.__name__ for each in errors if issubclass(each, outbox.OutboxError)]
    page = (REFERENCE / "errors.md").read_text()
    tree = re.findall(r"\w+", page.partition("```text\n")[2].partition("```")[0])
    assert sorted(tree) == sorted(names)
    told = re.findall(r"^(?:\| |### )`(?:outbox\.)?(?:errors\.|webhooks\.)?(\w+)`", page, re.MULTILINE)
    assert set(names) - set(told) == {"OutboxError", "Signal"}


def test_every_attribute_of_an_event_that_is_public_exists() -> None:
    rows = re.findall(r"^\| (`.+?`) \| .+ \|$", sections()["outbox.Event"], re.MULTILINE)
    names = re.findall(r"`(\w+)`", " ".join(rows))
    assert len(names) > 10
    assert [name for name in names if not hasattr(outbox.Event, name)] == []


def log_fields() -> set[str]:
    """Return the names that the library gives to `logs.fields`."""
    sources = (path.read_text() for path in (REFERENCE.parent.parent / "outbox").rglob("*.py"))
    calls = (node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    given = [call.keywords for call in calls if ast.unparse(call.func) == "logs.fields"]
    return {keyword.arg for keywords in given for keyword in keywords if keyword.arg is not None}


def test_every_log_field_is_documented() -> None:
    cells = re.findall(r"^\| (`.+?`) \| .+ \| .+ \|$", (REFERENCE / "logs.md").read_text(), re.MULTILINE)
    assert len(log_fields()) > 10
    assert log_fields() - set(re.findall(r"`(\w+)`", " ".join(cells))) == set()


def test_every_column_of_the_inbox_is_documented() -> None:
    section = (REFERENCE / "tables.md").read_text().partition("## inbox\n")[2].partition("\n## ")[0]
    columns = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert columns == outbox.InboxMessage._meta.sorted_field_names
