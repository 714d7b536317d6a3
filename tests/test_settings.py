"""Settings: from the environment or from configure, and a wrong one is one clear sentence."""

import ipaddress
import logging
import os
import socket
import sqlite3
import sys
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import peewee
import psycopg
import pytest

import outbox
from outbox import current_outbox
from outbox import settings as settings_module
from outbox.core import Outbox
from outbox.setting_arguments import SettingArguments
from outbox.settings import PREFIX, Settings
from outbox.storage.connect import open_database
from tests.support.program import BIN, run

# Each setting's default, a value that an environment variable may have, and what it means.
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

GOOD: dict[str, tuple[Any, list[tuple[str, Any]]]] = {
    "database_url": ("sqlite:///outbox.db", [("postgresql://h/d", "postgresql://h/d")]),
    "schema": (None, [("shop", "shop"), ("Shop_2", "Shop_2"), ("s" * 63, "s" * 63)]),
    "table_prefix": ("outbox_", [("billing_", "billing_"), ("p" * 30, "p" * 30)]),
    "prepared_statements": (True, [("false", False), ("on", True)]),
    "redis_url": (None, [("redis://h", "redis://h")]),
    "dispatch": ("dramatiq", [("off", "off")]),
    "batch_size": (100, [("1", 1), (" 10000 ", 10_000)]),
    "drains": (2, [("1", 1), ("1000", 1_000)]),
    "lease_seconds": (30.0, [("0.5", 0.5), ("2", 2.0)]),
    "max_run_seconds": (300.0, [("30", 30.0)]),
    "max_attempts": (5, [("1", 1), ("1000", 1_000)]),
    "max_age_hours": (72.0, [("0", 0.0)]),
    "backoff_base_seconds": (60.0, [("0", 0.0), ("1e1", 10.0)]),
    "backoff_cap_seconds": (3600.0, [("0", 0.0)]),
    "backoff_jitter": (True, [("0", False), ("No", False), ("off", False), ("FALSE", False), ("yes", True)]),
    "unhandled": ("wait", [("deliver", "deliver"), ("fail", "fail")]),
    "retention_hours": (168.0, [("0", 0.0)]),
    "inbox_retention_hours": (None, [("240", 240.0), ("1000", 1_000.0)]),
    "sweep_seconds": (10.0, [("0.1", 0.1)]),
    "cleanup_minutes": (60.0, [("0.01", 0.01)]),
    "publish_seconds": (10.0, [("0", 0.0), ("3600", 3600.0)]),
    "log_format": ("text", [("json", "json")]),
    "max_payload_bytes": (256 * 1024, [("2", 2), ("67108864", 67_108_864)]),
    "attempts": ("failures", [("all", "all"), ("none", "none")]),
    "exit_on_stuck": (False, [("1", True), ("true", True), ("off", False)]),
    "require_transaction": (False, [("1", True), (" on ", True), ("True", True)]),
    "namespace": ("dramatiq", [("mine", "mine")]),
    "queue": ("outbox", [("mine", "mine")]),
    "webhook_url": (None, [("https://h/in", "https://h/in")]),
    "webhook_secret": (None, [("new old", "new old")]),
    "webhook_client": ("httpx", [("curl", "curl")]),
    "webhook_response_excerpt": (True, [("false", False), ("on", True)]),
    "warn_in_event_loop": (True, [("false", False)]),
    "stream": (None, [("events.{tenant_id}", "events.{tenant_id}")]),
    "consume_url": (None, [("amqp://localhost/", "amqp://localhost/")]),
    "rabbitmq_url": (None, [("amqp://localhost/", "amqp://localhost/")]),
    "rabbitmq_exchange": (None, [("events", "events")]),
    "nats_url": (None, [("nats://localhost", "nats://localhost")]),
    "nats_subject": ("events.{event_type}", [("events.all", "events.all")]),
    "kafka_servers": (None, [("localhost:9092", "localhost:9092")]),
    "kafka_topic": ("events.{aggregate_type}", [("events", "events")]),
    "kafka_config": (None, [("sasl.username=me", "sasl.username=me")]),
    "encryption_keys": (None, [(f" {KEY} ", KEY), (f"plain {KEY}", f"plain {KEY}")]),
    "masked_keys": (settings_module.DEFAULT_MASKED_KEYS, [("iban,pin_code", "iban,pin_code")]),
    "dashboard_host": ("127.0.0.1", [("0.0.0.0", "0.0.0.0")]),  # noqa: S104  (a value, not a socket)
    "dashboard_port": (8642, [("0", 0), ("65535", 65_535)]),
    "dashboard_user": (None, [("ada", "ada")]),
    "dashboard_users": (None, [("ada:view:hush", "ada:view:hush")]),
    "dashboard_allowed_hosts": ((), [("a.example.com, b.example.com", ("a.example.com", "b.example.com"))]),
    "dashboard_trusted_proxies": (
        (),
        [("10.0.0.0/8 ::1", (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("::1")))],
    ),
    "archive_directory": (None, [("/var/outbox", "/var/outbox")]),
    "health_directory": (None, [("/run/outbox", "/run/outbox")]),
    "metrics_token": (None, [("hush", "hush")]),
    "dashboard_password": (None, [("hush", "hush")]),
    "dashboard_read_only": (False, [("on", True)]),
}
BAD = {
    "schema": ["my-shop", 'x"; DROP TABLE note; --', "a.b", "2shops", "größe", "s" * 64, "shop\n"],
    "table_prefix": ["Billing_", "my-", "2_", "a.b_", "ö_", "p" * 31, " ", "p_\n"],
    "prepared_statements": ["none", "5"],
    "batch_size": ["0", "10001", "-1", "1.5", "ten", "1_0 0"],
    "drains": ["0", "1001"],
    "lease_seconds": ["0.49", "nan", "inf", "soon"],
    "max_run_seconds": ["0.9"],
    "max_attempts": ["0", "1001", "x"],
    "max_age_hours": ["-1"],
    "backoff_base_seconds": ["-0.1", "inf"],
    "backoff_cap_seconds": ["-1"],
    "backoff_jitter": ["maybe", "2"],
    "unhandled": ["drop", "WAIT "],
    "retention_hours": ["-1", "nan"],
    "inbox_retention_hours": ["-1", "175201", "long"],
    "sweep_seconds": ["0.09"],
    "cleanup_minutes": ["0"],
    "publish_seconds": ["-1", "3601"],
    "log_format": ["JSON", "logfmt"],
    "max_payload_bytes": ["1", "67108865"],
    "require_transaction": ["ja"],
    "warn_in_event_loop": ["nein"],
    "webhook_client": ["libcurl", "HTTPX"],
    "webhook_response_excerpt": ["maybe"],
    "dashboard_port": ["-1", "65536", "http"],
    "dashboard_user": [" ", "a:b"],
    "dashboard_read_only": ["perhaps"],
    "dashboard_allowed_hosts": [" , "],
    "dashboard_trusted_proxies": ["proxy.example.com", "10.0.0.1/8", "10.0.0.0/8, *"],
}


def load(**variables: str) -> Settings:
    return Settings.load({PREFIX + name.upper(): value for name, value in variables.items()})


def refusal(**variables: str) -> str:
    with pytest.raises(outbox.SettingsError) as raised:
        load(**variables)
    return str(raised.value)


# The environment


def test_every_setting_is_tried_here() -> None:
    assert set(GOOD) == {field.name for field in fields(Settings)}


@pytest.mark.parametrize("name", GOOD)
def test_a_setting_has_its_default_and_its_variable(name: str) -> None:
    default, tries = GOOD[name]
    assert getattr(load(), name) == default
    for written, meant in tries:
        value = getattr(load(**{name: written}), name)
        assert (value, type(value)) == (meant, type(meant))


@pytest.mark.parametrize("name", GOOD)
def test_an_empty_variable_leaves_the_default(name: str) -> None:
    assert load(**{name: ""}) == load()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_wrong_value_names_the_variable_the_value_and_what_it_may_be(name: str, value: str) -> None:
    message = refusal(**{name: value})
    assert message.startswith(f"{PREFIX}{name.upper()} must be ")
    assert message.endswith(f", not {value!r}.")


def test_limits_are_named() -> None:
    assert "a whole number from 1 to 10000" in refusal(batch_size="0")
    assert "a number from 0.5 to 86400" in refusal(lease_seconds="0")
    assert "one of wait, deliver, fail" in refusal(unhandled="x")


def test_a_lease_can_not_outlast_the_longest_run() -> None:
    assert load(lease_seconds="300").lease_seconds == 300
    message = refusal(lease_seconds="301")
    assert "OUTBOX_MAX_RUN_SECONDS (300)" in message
    assert "OUTBOX_LEASE_SECONDS (301)" in message


def test_the_inbox_remembers_as_long_as_an_event_may_come_again() -> None:
    assert load().inbox_hours == 72 + 168
    assert load(max_age_hours="5", retention_hours="7").inbox_hours == 12
    assert load(max_age_hours="5", retention_hours="7", inbox_retention_hours="13").inbox_hours == 13


def test_an_inbox_that_would_forget_sooner_is_refused() -> None:
    assert load(inbox_retention_hours="240").inbox_hours == 240
    assert load(inbox_retention_hours="0", max_age_hours="0", retention_hours="0").inbox_hours == 0
    assert refusal(inbox_retention_hours="239.5") == (
        "OUTBOX_INBOX_RETENTION_HOURS (239.5) is less than OUTBOX_MAX_AGE_HOURS (72) + OUTBOX_RETENTION_HOURS (168) = "
        "240: until then an event may be delivered again, and the inbox would take it for a new one. Raise it, or "
        "leave it out."
    )
    assert "(240) is less than OUTBOX_MAX_AGE_HOURS (73) + " in refusal(inbox_retention_hours="240", max_age_hours="73")


def test_the_longest_times_can_be_remembered() -> None:
    longest = load(max_age_hours="87600", retention_hours="87600")
    assert load(max_age_hours="87600", retention_hours="87600", inbox_retention_hours="175200") != longest
    assert longest.inbox_hours == 175_200


def test_an_unknown_variable_is_warned_about_once_with_a_suggestion(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "_warned", set())
    for _ in range(2):
        load(bath_size="1", colour="red")
    assert caplog.messages == [
        "OUTBOX_BATH_SIZE is not a setting of the outbox; did you mean OUTBOX_BATCH_SIZE?",
        "OUTBOX_COLOUR is not a setting of the outbox.",
    ]


def test_variables_of_tests_and_of_others_are_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    Settings.load({"OUTBOX_TEST_POSTGRES_URL": "x", "OUTBOXES": "x", "PATH": "x"})
    assert caplog.messages == []


def test_secrets_are_in_no_error_and_no_repr() -> None:
    urls = {
        "database_url": "postgresql://u:hush@h/d",
        "redis_url": "redis://:hush@h",
        "webhook_url": "https://u:hush@h",
    }
    configured = load(**urls, webhook_secret="hush", dashboard_password="hush")
    assert "hush" not in repr(configured)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:hush@h/d",
        "hush",
        "postgresql://u:hush@[h/d",
        "postgresql://u:hush@h/d?nonsense=1",
        "postgresql://u:hush@h",
        "postgresql://u:hu%zzsh@h/hush",
        "postgresql://u:hush\u2100@h/d",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://?hush",
    ],
)
def test_an_address_that_can_not_be_used_is_not_repeated(url: str) -> None:
    with pytest.raises(outbox.SettingsError, match="OUTBOX_DATABASE_URL") as raised:
        open_database(url)
    assert "hush" not in str(raised.value)
    assert raised.value.__cause__ is None


# configure


def test_configure_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_BATCH_SIZE", "7")
    monkeypatch.setenv("OUTBOX_DRAINS", "3")
    loaded = Settings.load(batch_size=8, drains=None)
    assert (loaded.batch_size, loaded.drains) == (8, 3)


def test_configure_refuses_what_it_does_not_know() -> None:
    with pytest.raises(
        outbox.SettingsError, match=r"configure\(\) has no setting 'bath_size'; did you mean batch_size\?"
    ):
        outbox.configure(bath_size=1)  # type: ignore[call-arg]
    with pytest.raises(outbox.SettingsError, match=r"configure\(\) has no setting 'colour'\."):
        outbox.configure(colour=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 1.0), ("batch_size", True), ("lease_seconds", True), ("queue", 7), ("queue", ""), ("dispatch", 7)],
)
def test_configure_refuses_values_of_another_kind(name: str, value: Any) -> None:
    with pytest.raises(outbox.SettingsError, match=rf"configure\({name}=…\) must be"):
        outbox.configure(**{name: value})


def test_configure_hides_secrets() -> None:
    with pytest.raises(outbox.SettingsError) as raised:
        outbox.configure(database_url=["hush"])  # type: ignore[arg-type]
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("url", ["localhost:6379", "hush", "http://:hush@h", "redis:/h", "Redis://h", " redis://h"])
def test_a_redis_url_that_is_none_is_refused_at_once_and_not_repeated(url: str) -> None:
    with pytest.raises(
        outbox.SettingsError, match=r"^configure\(redis_url=…\) must be a URL that begins with redis://.* "
    ) as raised:
        outbox.configure(redis_url=url)
    assert url not in str(raised.value).removeprefix("configure(redis_url=…)").partition(", such as")[0]
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("url", ["redis://localhost:6379", "rediss://:x@h:1/2?y=z", "unix:///run/redis.sock"])
def test_every_kind_of_redis_url_is_accepted(url: str) -> None:
    assert load(redis_url=url).redis_url == url


def test_type_checkers_know_the_arguments_of_configure() -> None:
    hints = typing.get_type_hints(SettingArguments)
    assert list(hints) == [field.name for field in fields(Settings)]
    for name, (default, tries) in GOOD.items():
        allowed = typing.get_args(hints[name])
        assert type(None) in allowed
        for value in [default, *(meant for _, meant in tries)]:
            if value is not None and not isinstance(value, tuple):
                assert value in typing.get_args(allowed[0]) or isinstance(value, allowed), name


def test_an_unknown_dispatch_names_those_that_exist(sqlite_url: str) -> None:
    with pytest.raises(
        outbox.SettingsError, match="OUTBOX_DISPATCH must be one of dramatiq, inline, off, not 'pigeon'"
    ):
        Outbox(Settings(dispatch="pigeon", database_url=sqlite_url))


def test_without_configure_the_environment_decides(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("OUTBOX_DISPATCH", "off")
    monkeypatch.setattr(current_outbox, "_current", None)
    outbox.create_tables()
    outbox.emit("Note", 1, "note.written")
    database: Any = outbox.current().database
    assert Path(database.database) == Path(sqlite_url.removeprefix("sqlite:///"))
    database.close_all()


def test_loading_settings_opens_no_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(current_outbox, "_current", None)
    assert outbox.loaded_settings() == Settings.load()
    assert list(tmp_path.iterdir()) == []


# The application's database


GOOD_OPTIONS: dict[str, Any] = {"pragmas": {"journal_mode": "wal"}, "lock_type": "IMMEDIATE"}


def warnings_about(database: peewee.Database, caplog: pytest.LogCaptureFixture) -> str:
    caplog.set_level(logging.WARNING, logger="outbox")
    Outbox(Settings(dispatch="off"), database=database)
    return "\n".join(caplog.messages)


def test_sqlite_without_wal_or_immediate_transactions_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warning = warnings_about(peewee.SqliteDatabase(str(tmp_path / "app.db")), caplog)
    assert warning.count('pragmas={"journal_mode": "wal"}, lock_type="IMMEDIATE"') == 1


@pytest.mark.parametrize(("lacking", "named"), [("pragmas", "journal_mode"), ("lock_type", "IMMEDIATE")])
def test_only_what_is_missing_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lacking: str, named: str
) -> None:
    options = {name: value for name, value in GOOD_OPTIONS.items() if name != lacking}
    warning = warnings_about(peewee.SqliteDatabase(str(tmp_path / "app.db"), **options), caplog)
    assert [word for word in ("journal_mode", "IMMEDIATE") if word in warning] == [named]


def test_sqlite_with_both_is_not_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_about(peewee.SqliteDatabase(str(tmp_path / "app.db"), **GOOD_OPTIONS), caplog) == ""
    assert warnings_about(open_database(f"sqlite:///{tmp_path}/own.db"), caplog) == ""
    assert warnings_about(peewee.SqliteDatabase(":memory:"), caplog) == ""


def test_a_file_that_is_in_wal_already_is_not_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "app.db"
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA journal_mode=wal")
    connection.execute("CREATE TABLE t (i)")
    connection.close()
    assert "journal_mode" not in warnings_about(peewee.SqliteDatabase(str(file)), caplog)


def test_another_kind_of_database_is_refused() -> None:
    with pytest.raises(outbox.SettingsError, match="not on MySQLDatabase"):
        outbox.configure(database=peewee.MySQLDatabase("app"))


class Psycopg2Database(peewee.PostgresqlDatabase):
    """What Peewee makes of a database without `prefer_psycopg3` where psycopg2 is installed as well."""

    psycopg3_adapter = peewee.Psycopg2Adapter


def test_psycopg2_is_refused() -> None:
    with pytest.raises(outbox.SettingsError, match="prefer_psycopg3=True"):
        outbox.configure(database=Psycopg2Database("app"))


# Addresses


def test_sqlite_addresses_are_relative_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///app.db", f"sqlite:///{tmp_path}/app.db", f"sqlite:///{tmp_path}/a%70p.db"):
        database: Any = open_database(url)
        assert Path(database.database).resolve() == tmp_path / "app.db"


def test_an_sqlite_database_of_ours_waits_for_others_and_loses_nothing(tmp_path: Path) -> None:
    database: Any = open_database(f"sqlite:///{tmp_path}/app.db")
    pragmas = [database.execute_sql(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert (pragmas, database.execute_sql("PRAGMA busy_timeout").fetchone()[0]) == (["wal", 2], 10_000)
    database.close_all()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "psycopg3"])
def test_postgres_addresses_may_begin_in_several_ways(postgres_url: str, scheme: str) -> None:
    database: Any = open_database(postgres_url.replace("postgresql://", f"{scheme}://"))
    name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    assert database.execute_sql("SELECT current_database(), current_setting('application_name')").fetchone() == (
        name,
        "dramatiq-outbox",
    )
    database.close_all()


def test_postgres_addresses_carry_libpqs_own_parameters(postgres_url: str) -> None:
    database: Any = open_database(f"{postgres_url}?application_name=mine&options=-c%20work_mem%3D5MB")
    assert database.execute_sql("SELECT current_setting('application_name')").fetchone() == ("mine",)
    assert database.execute_sql("SHOW work_mem").fetchone() == ("5MB",)
    database.close_all()


@pytest.mark.parametrize(
    ("setting", "query", "threshold"),
    [
        (True, "", 5),
        (False, "", None),
        (True, "?prepared_statements=false", None),
        (False, "?prepared_statements=true", 5),
        (True, "?application_name=mine&prepared_statements=off&connect_timeout=3", None),
    ],
)
def test_statements_are_prepared_unless_the_setting_or_the_address_forbids_it(
    postgres_url: str, setting: bool, query: str, threshold: int | None
) -> None:
    settings = Settings(database_url=postgres_url + query, prepared_statements=setting, dispatch="off")
    database: Any = Outbox(settings).database
    with database.connection_context():
        assert database.connection().prepare_threshold == threshold
        given = database.connection().info.get_parameters()
        assert given["application_name"] == ("mine" if "mine" in query else "dramatiq-outbox")
        assert given["connect_timeout"] == ("3" if "mine" in query else "10")
    database.close_all()


def test_a_wrong_value_in_the_address_is_named_without_the_address() -> None:
    with pytest.raises(outbox.SettingsError) as raised:
        open_database("postgresql://u:hush@h/d?prepared_statements=maybe")
    assert str(raised.value) == "prepared_statements in OUTBOX_DATABASE_URL must be true or false."


@pytest.mark.parametrize(("query", "milliseconds"), [("", "15000"), ("?tcp_user_timeout=4000", "4000")])
def test_a_connection_whose_data_nobody_acknowledges_ends_after_seconds(
    postgres_url: str, query: str, milliseconds: str
) -> None:
    database: Any = open_database(postgres_url + query)
    with database.connection_context():
        assert database.connection().info.get_parameters()["tcp_user_timeout"] == milliseconds
        with socket.socket(fileno=os.dup(database.connection().fileno())) as ours:
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it; libpq ignores the parameter elsewhere
                assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == int(milliseconds)
    database.close_all()


# Programs

REDIS = "redis://127.0.0.1:1/0"
INIT = (BIN / "outbox", "init")
SCHEDULER = (sys.executable, "-m", "scheduler")
WORKER = (BIN / "dramatiq", "jobs", "-p", "1", "-t", "1")
PROGRAMS = {"outbox init": INIT, "scheduler": SCHEDULER, "worker": WORKER}


def complaint(program: tuple[str | Path, ...], **settings: Any) -> str:
    """The one line that a program says about its settings before it ends."""
    done = run(*program, **settings)
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    assert "hush" not in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("outbox: ")]
    return line


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_wrong_value_ends_a_program_with_one_line(program: str) -> None:
    line = complaint(PROGRAMS[program], lease_seconds="soon", redis_url=REDIS)
    assert line == "outbox: OUTBOX_LEASE_SECONDS must be a number from 0.5 to 86400, not 'soon'."


@pytest.mark.parametrize("program", ["scheduler", "worker"])
def test_a_wrong_address_of_redis_ends_a_program_with_one_line(program: str) -> None:
    assert "OUTBOX_REDIS_URL" in complaint(PROGRAMS[program], redis_url="redis://:hush/hush@h:1/0")


@pytest.mark.parametrize("program", ["scheduler", "worker"])
def test_without_redis_a_program_says_what_else_to_run(program: str) -> None:
    assert "OUTBOX_REDIS_URL is not set" in complaint(PROGRAMS[program], database_url="sqlite:////tmp/none.db")


@pytest.mark.parametrize("program", ["outbox init", "worker"])
@pytest.mark.parametrize("wrong", [{"database_url": "mysql://u:hush@h/d"}, {"dispatch": "pigeon"}], ids=str)
def test_what_is_only_tried_later_ends_a_program_with_one_line_as_well(program: str, wrong: dict[str, str]) -> None:
    (name,) = wrong
    assert f"{PREFIX}{name.upper()}" in complaint(PROGRAMS[program], redis_url=REDIS, **wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"stream": "{order}"}, "OUTBOX_STREAM"),
        ({"stream": "events", "redis_url": ""}, "OUTBOX_REDIS_URL"),
        ({"webhook_url": "pigeon://u:hush@h"}, "OUTBOX_WEBHOOK_URL"),
        ({"webhook_secret": "hush"}, "OUTBOX_WEBHOOK_URL"),
    ],
    ids=str,
)
def test_a_destination_that_can_not_be_had_ends_a_program_with_one_line(wrong: dict[str, str], said: str) -> None:
    assert said in complaint(INIT, **{"redis_url": REDIS} | wrong)


@pytest.mark.parametrize("url", ["postgresql://u:hush@127.0.0.1:1/d", "sqlite:////nonexistent/folder/app.db"])
def test_a_database_that_can_not_be_opened_is_one_message(url: str) -> None:
    assert "OUTBOX_DATABASE_URL" in complaint(INIT, database_url=url)


def test_an_sqlite_address_with_two_slashes_is_refused() -> None:
    with pytest.raises(outbox.SettingsError, match="must begin with postgresql:// or sqlite:///"):
        open_database("sqlite://outbox.db")
