"""Any text in any variable is a value, or an error of ours that names the variable."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.core import Outbox
from outbox.errors import OutboxError, SettingsError
from outbox.settings import PREFIX, Settings
from outbox.storage.connect import open_database
from tests.fuzz.anything import texts, things
from tests.support.thoroughness import thorough

NAMES = [field.name for field in dataclasses.fields(Settings)]
NUMBERS = [
    "0",
    "-1",
    "1e999",
    "nan",
    "inf",
    " 1 ",
    "1_0",
    "0x1",
    "\uff11",
    "1" * 5_000,
    "1.5",
    "1e3",
    "on",
    "OFF",
    "dramatiq",
]

words = st.sampled_from(NUMBERS) | texts
addresses = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "sqlite:///", "postgresql://", "redis://", "https://", "http://", "psycopg3+pool://"]),
        st.sampled_from(["", "u:hush-hush@", "u%zz:hush-hush@", ":hush-hush@", "@", "[::1", "[", "]"]),
        st.sampled_from(["", "h", "127.0.0.1:1", "h:99999999", "h:x", ":"]) | texts,
        st.sampled_from(["", "/", "/db", "/0", "/db?sslmode=x", "?a=b&a", "#f", "/%00", "/\ud800"]),
    ),
)  # fmt: skip


@thorough(300)
@given(environ=st.dictionaries(st.sampled_from(NAMES), words, min_size=1, max_size=3))
def test_any_text_is_a_value_or_an_error_that_names_its_variable(environ: dict[str, str]) -> None:
    variables = {PREFIX + name.upper(): text for name, text in environ.items()}
    try:
        loaded = Settings.load(variables)
    except SettingsError as error:
        said = str(error)
    else:
        said = repr(loaded)
    assert any(variable in said for variable in variables) or said.startswith("Settings(")


@thorough(300)
@given(name=st.sampled_from(NAMES), value=things)
def test_any_value_in_configure_is_taken_or_refused(name: str, value: Any) -> None:
    try:
        Settings.load({}, **{name: value})
    except SettingsError as error:
        refused = str(error)
    else:
        refused = ""
    assert refused == "" or name in refused.lower()


@thorough(300)
@given(url=addresses)
def test_any_address_of_a_database_opens_or_is_refused_without_its_password(
    url: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.getbasetemp())
    try:
        open_database(url)  # connects to nothing yet
    except SettingsError as error:
        assert "hush-hush" not in str(error)  # noqa: PT017  (most of them are refused, not all)


@thorough(150)
@given(name=st.sampled_from(["redis_url", "webhook_url", "webhook_secret", "stream"]), value=addresses | words)
def test_any_address_of_anything_else_is_used_or_refused_without_its_password(
    name: str, value: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.sqlite3"
    try:
        settings = Settings.load({}, dispatch="off", **{name: value})
        box = Outbox(settings, database=open_database(f"sqlite:///{file}"))
    except OutboxError as error:
        said = str(error)
    else:
        said = repr(box.registry.destinations) + repr(settings)
    assert "hush-hush" not in said
