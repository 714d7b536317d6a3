"""The settings: `OUTBOX_*` environment variables and the arguments of `outbox.configure`, parsed and checked.

No other module reads them. The table in docs/reference/settings.md is made from the defaults and the meanings here.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from outbox.encryption.keys import parse_setting as parse_encryption_keys
from outbox.errors import SettingsError
from outbox.setting_values import (
    DAY,
    TEN_YEARS_OF_HOURS,
    Network,
    finite_number,
    one_of,
    parse_networks,
    parse_not_blank,
    parse_redis_url,
    parse_text,
    parse_truth,
    parse_user_name,
    parse_words,
    whole_number,
)
from outbox.table_names import DEFAULT_PREFIX, Tables, parse_prefix, parse_schema

logger = logging.getLogger(__name__)

PREFIX = "OUTBOX_"
# Variables for the project's own tests begin with this; they are not settings.
TEST_PREFIX = "OUTBOX_TEST_"
DEFAULT_DATABASE_URL = "sqlite:///outbox.db"
# The two values of OUTBOX_DISPATCH that need no plug-in: the emitter delivers itself, or no worker is notified.
INLINE, OFF = "inline", "off"
DEFAULT_MASKED_KEYS = (
    "password,passwd,pwd,passphrase,secret,token,jwt,otp,session,authorization,api_key,access_key,private_key,cookie,"
    "credential,signature"
)


def _setting(default: Any, parse: Callable[[object], Any], meaning: str, *, secret: bool = False) -> Any:
    """Return a field of Settings. A `secret` value never appears in a repr or an error."""
    metadata = {"parse": parse, "meaning": meaning, "secret": secret}
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Each field is an argument of `outbox.configure`, and the variable `OUTBOX_<NAME>`."""

    database_url: str = _setting(
        DEFAULT_DATABASE_URL,
        parse_text,
        "the database with the events; `configure(database=…)` takes precedence",
        secret=True,
    )
    schema: str | None = _setting(
        None,
        parse_schema,
        "the PostgreSQL schema with the tables; by default where the search path finds them",
    )
    table_prefix: str = _setting(
        DEFAULT_PREFIX,
        parse_prefix,
        "the prefix of the tables' names; the inbox's table is `inbox`, and with another prefix `<prefix>inbox`",
    )
    prepared_statements: bool = _setting(
        True,
        parse_truth,
        "let PostgreSQL keep statements prepared; `false` behind PgBouncer, unless it pools by session; for the "
        "database of `OUTBOX_DATABASE_URL`",
    )
    redis_url: str | None = _setting(
        None,
        parse_redis_url,
        "the broker, unless the application has set one; without either messages stay inside the process",
        secret=True,
    )
    dispatch: str = _setting(
        "dramatiq",
        parse_text,
        "what follows a commit: `dramatiq` wakes a worker, `inline` delivers here, `off` waits for a sweep",
    )
    batch_size: int = _setting(
        100, whole_number(1, 10_000), "most events claimed at once; batches shrink to about a second of work"
    )
    drains: int = _setting(2, whole_number(1, 1_000), "most batches claimed at the same time in a worker process")
    lease_seconds: float = _setting(
        30.0, finite_number(0.5, DAY), "how long a worker's lease on a claimed event lasts unless the worker renews it"
    )
    max_run_seconds: float = _setting(
        300.0, finite_number(1, DAY), "how long the leases of a batch are renewed while it is being delivered"
    )
    max_attempts: int = _setting(5, whole_number(1, 1_000), "attempts per destination before an event fails")
    max_age_hours: float = _setting(
        72.0,
        finite_number(0, TEN_YEARS_OF_HOURS),
        "how long an event waits for a destination, or a job for its broker, that is unavailable",
    )
    backoff_base_seconds: float = _setting(
        60.0, finite_number(0, 365 * DAY), "the wait before the second attempt; doubles each time"
    )
    backoff_cap_seconds: float = _setting(3600.0, finite_number(0, 365 * DAY), "the longest wait between attempts")
    backoff_jitter: bool = _setting(True, parse_truth, "lengthen each wait by up to a quarter, at random")
    attempts: str = _setting(
        "failures",
        one_of("failures", "all", "none"),
        "which attempts are kept with their errors, up to 20 for each event: `failures`, `all` or `none`",
    )
    exit_on_stuck: bool = _setting(
        False,
        parse_truth,
        "end a worker process that can deliver nothing more to a destination, because calls of it never return",
    )
    unhandled: str = _setting(
        "wait",
        one_of("wait", "deliver", "fail"),
        "what happens to an event that no destination wants: `wait`, `deliver` or `fail`",
    )
    retention_hours: float = _setting(
        168.0, finite_number(0, TEN_YEARS_OF_HOURS), "how long events and jobs are kept after they ended"
    )
    inbox_retention_hours: float | None = _setting(
        None,
        finite_number(0, 2 * TEN_YEARS_OF_HOURS),
        "how long the inbox remembers messages; by default as long as an event may be delivered again: "
        "`OUTBOX_MAX_AGE_HOURS` + `OUTBOX_RETENTION_HOURS`",
    )
    sweep_seconds: float = _setting(
        10.0,
        finite_number(0.1, DAY),
        "how often the scheduler asks a worker to look for due events; a worker that can't reach its broker looks by "
        "itself that often",
    )
    cleanup_minutes: float = _setting(
        60.0, finite_number(0.01, 365 * 24 * 60), "how often the scheduler asks a worker to delete old rows"
    )
    publish_seconds: float = _setting(
        10.0,
        finite_number(0, 3600),
        "how often a process reports to the database that it is running, and its counts; `0`: never",
    )
    log_format: str = _setting(
        "text",
        one_of("text", "json"),
        "the log format of commands, scheduler and workers: `text`, or `json`, a line for each record",
    )
    max_payload_bytes: int = _setting(
        256 * 1024,
        whole_number(2, 64 * 1024 * 1024),
        "the largest payload of an event, or message of a job, as JSON in UTF-8",
    )
    require_transaction: bool = _setting(False, parse_truth, "refuse `emit` and `outbox.send` outside a transaction")
    warn_in_event_loop: bool = _setting(
        True, parse_truth, "log a warning when `emit` or `outbox.send` blocks an event loop"
    )
    namespace: str = _setting("dramatiq", parse_text, "what Dramatiq's keys in Redis begin with")
    queue: str = _setting("outbox", parse_text, "the Dramatiq queue of the deliveries")
    webhook_url: str | None = _setting(
        None, parse_text, "the URL that every event is posted to, by a destination called `webhook`", secret=True
    )
    webhook_secret: str | None = _setting(
        None,
        parse_text,
        "signs the requests; several secrets, separated by spaces, while one replaces another",
        secret=True,
    )
    webhook_client: str = _setting(
        "httpx",
        one_of("httpx", "curl"),
        "the HTTP client that posts it: `httpx`, or `curl`, which is faster and needs the extra `curl`",
    )
    webhook_response_excerpt: bool = _setting(
        True, parse_truth, "store the beginning of that receiver's response with the error of an event"
    )
    stream: str | None = _setting(
        None,
        parse_text,
        "the Redis stream that every event is added to, by a destination called `stream`: `events`, or "
        "`events.{aggregate_type}`",
    )
    consume_url: str | None = _setting(
        None,
        parse_text,
        "the Redis, or the RabbitMQ (`amqp://…`), that `outbox consume` reads; by default that of `OUTBOX_REDIS_URL`",
        secret=True,
    )
    rabbitmq_url: str | None = _setting(
        None,
        parse_text,
        "the RabbitMQ that every event is published to, by a destination called `rabbitmq`; several URLs of a cluster, "
        "separated by spaces",
        secret=True,
    )
    rabbitmq_exchange: str | None = _setting(
        None, parse_text, "the exchange that they are published to, with the event type as routing key; it must exist"
    )
    nats_url: str | None = _setting(
        None,
        parse_text,
        "the NATS that every event is published to, by a destination called `nats`; several URLs of a cluster, "
        "separated by spaces",
        secret=True,
    )
    nats_subject: str = _setting(
        "events.{event_type}", parse_text, "the subject that they are published to; a stream of JetStream must have it"
    )
    kafka_servers: str | None = _setting(
        None,
        parse_text,
        "the brokers of the Kafka that every event is published to, by a destination called `kafka`: "
        "`kafka-1:9092,kafka-2:9092`",
    )
    kafka_topic: str = _setting("events.{aggregate_type}", parse_text, "the topic that they are published to")
    kafka_config: str | None = _setting(
        None,
        parse_text,
        "further settings of librdkafka, each `name=value`, separated by spaces, such as `security.protocol=SASL_SSL`",
        secret=True,
    )
    masked_keys: str = _setting(
        DEFAULT_MASKED_KEYS,
        parse_text,
        "keys whose values are not shown in payloads, headers and arguments, at any depth; case and punctuation don't "
        "count",
    )
    encryption_keys: str | None = _setting(
        None,
        parse_encryption_keys,
        "encrypts payloads and headers in the table: keys that `outbox encryption-key` makes, separated by spaces; the "
        "first encrypts, all decrypt; needs the extra `encryption`",
        secret=True,
    )
    dashboard_host: str = _setting(
        "127.0.0.1",
        parse_text,
        "the address that `outbox dashboard` listens on; one that other hosts can reach needs a password",
    )
    dashboard_port: int = _setting(
        8642, whole_number(0, 65_535), "the port that the dashboard listens on; `0`: any free port"
    )
    dashboard_user: str | None = _setting(
        None, parse_user_name, "the dashboard's user name; without a name and a password it prints a login link"
    )
    dashboard_password: str | None = _setting(
        None, parse_not_blank, "the password of that user, who has all permissions; at least 12 characters", secret=True
    )
    dashboard_users: str | None = _setting(
        None,
        parse_not_blank,
        "more users, separated by spaces, each `name:permissions:password`; the permissions are some of `view`, "
        "`operate`, `admin` and `payloads`, separated by commas",
        secret=True,
    )
    dashboard_read_only: bool = _setting(False, parse_truth, "the dashboard shows everything and changes nothing")
    dashboard_allowed_hosts: tuple[str, ...] = _setting(
        (), parse_words, "the host names that the dashboard is served under, such as `ops.example.com`; by default any"
    )
    dashboard_trusted_proxies: tuple[Network, ...] = _setting(
        (),
        parse_networks,
        "the addresses or networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` the dashboard believes",
    )
    archive_directory: str | None = _setting(
        None,
        parse_not_blank,
        "a directory: the clean-up writes events to compressed files there before it deletes them; by default it only "
        "deletes them",
    )
    health_directory: str | None = _setting(
        None,
        parse_not_blank,
        "the directory in which workers and schedulers write their heartbeats for `outbox health`; by default one in "
        "the directory for temporary files",
    )
    metrics_token: str | None = _setting(
        None,
        parse_not_blank,
        "a token with which Prometheus may read the dashboard's `/metrics`, and nothing else; at least 12 characters",
        secret=True,
    )

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Return the settings of the environment, with `overrides` on top; None leaves a setting as it is."""
        environ = os.environ if environ is None else environ
        known = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name, field in known.items():
            variable = PREFIX + name.upper()
            if environ.get(variable, "") != "":
                values[name] = _parsed(field, environ[variable], variable)
        values |= _overrides(known, overrides)
        _warn_about_unknown(environ, known)
        return cls(**values)._checked()

    def changed(self, **overrides: Any) -> Self:
        """Return these settings with `overrides` on top; None leaves a setting as it is."""
        known = {field.name: field for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **_overrides(known, overrides))._checked()

    def _checked(self) -> Self:
        if self.max_run_seconds < self.lease_seconds:
            raise SettingsError(
                f"OUTBOX_MAX_RUN_SECONDS ({self.max_run_seconds:g}) is shorter than OUTBOX_LEASE_SECONDS "
                f"({self.lease_seconds:g}): a lease would outlast the longest run. Raise the one or lower the other."
            )
        if self.inbox_hours < self.redelivery_hours:
            raise SettingsError(
                f"OUTBOX_INBOX_RETENTION_HOURS ({self.inbox_hours:g}) is less than OUTBOX_MAX_AGE_HOURS "
                f"({self.max_age_hours:g}) + OUTBOX_RETENTION_HOURS ({self.retention_hours:g}) = "
                f"{self.redelivery_hours:g}: until then an event may be delivered again, and the inbox would take it "
                "for a new one. Raise it, or leave it out."
            )
        return self

    @property
    def names_database(self) -> bool:
        """Return whether a database was configured by URL; if not, the application may still pass its own."""
        return self.database_url != DEFAULT_DATABASE_URL

    @property
    def tables(self) -> Tables:
        return Tables(self.schema, self.table_prefix)

    @property
    def redelivery_hours(self) -> float:
        """Return how long after its first delivery an event may be delivered again: by retries, or by an operator."""
        return self.max_age_hours + self.retention_hours

    @property
    def inbox_hours(self) -> float:
        return self.redelivery_hours if self.inbox_retention_hours is None else self.inbox_retention_hours


def _overrides(known: Mapping[str, dataclasses.Field[Any]], overrides: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings that the caller gives, checked."""
    for name in overrides.keys() - known.keys():
        raise SettingsError(f"configure() has no setting {name!r}{_suggestion(name, known)}")
    return {
        name: _parsed(known[name], value, f"configure({name}=…)")
        for name, value in overrides.items()
        if value is not None
    }


def _parsed(field: dataclasses.Field[Any], value: object, source: str) -> Any:
    try:
        return field.metadata["parse"](value)
    except ValueError as error:
        shown = "" if field.metadata["secret"] else f", not {value!r}"
        raise SettingsError(f"{source} {error}{shown}.") from None


_warned: set[str] = set()


def _warn_about_unknown(environ: Mapping[str, str], known: Mapping[str, object]) -> None:
    for variable in environ:
        if not variable.startswith(PREFIX) or variable.startswith(TEST_PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in known and variable not in _warned:
            _warned.add(variable)
            logger.warning("%s is not a setting of the outbox%s", variable, _suggestion(name, known, PREFIX))


def _suggestion(name: str, known: Mapping[str, object], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if not close:
        return "."
    return f"; did you mean {prefix + close[0].upper() if prefix else close[0]}?"
