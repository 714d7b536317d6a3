"""The settings as keyword arguments of `outbox.configure`, for type checkers and editors.

`Settings` defines the settings; its parsers also accept texts, as they are in the environment. A test checks that both
have the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict


class SettingArguments(TypedDict, total=False):
    """The arguments that `outbox.configure` takes beside the databases. None leaves a setting as it is."""

    database_url: str | None
    schema: str | None
    table_prefix: str | None
    prepared_statements: bool | None
    redis_url: str | None
    dispatch: str | None
    batch_size: int | None
    drains: int | None
    lease_seconds: float | None
    max_run_seconds: float | None
    max_attempts: int | None
    max_age_hours: float | None
    backoff_base_seconds: float | None
    backoff_cap_seconds: float | None
    backoff_jitter: bool | None
    attempts: Literal["failures", "all", "none"] | None
    exit_on_stuck: bool | None
    unhandled: Literal["wait", "deliver", "fail"] | None
    retention_hours: float | None
    inbox_retention_hours: float | None
    sweep_seconds: float | None
    cleanup_minutes: float | None
    publish_seconds: float | None
    log_format: Literal["text", "json"] | None
    max_payload_bytes: int | None
    require_transaction: bool | None
    warn_in_event_loop: bool | None
    namespace: str | None
    queue: str | None
    webhook_url: str | None
    webhook_secret: str | None
    webhook_client: Literal["httpx", "curl"] | None
    webhook_response_excerpt: bool | None
    stream: str | None
    consume_url: str | None
    rabbitmq_url: str | None
    rabbitmq_exchange: str | None
    nats_url: str | None
    nats_subject: str | None
    kafka_servers: str | None
    kafka_topic: str | None
    kafka_config: str | None
    masked_keys: str | None
    encryption_keys: str | None
    dashboard_host: str | None
    dashboard_port: int | None
    dashboard_user: str | None
    dashboard_password: str | None
    dashboard_users: str | None
    dashboard_read_only: bool | None
    dashboard_allowed_hosts: str | Sequence[str] | None
    dashboard_trusted_proxies: str | Sequence[str] | None
    archive_directory: str | None
    health_directory: str | None
    metrics_token: str | None
