"""Settings that the doctor warns about: the variable that the advice names, an unsafe value, one that is just safe."""

from typing import Any

import outbox

UNSAFE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("OUTBOX_RETENTION_HOURS", {"retention_hours": 71}, {"retention_hours": 72}),
    (
        "OUTBOX_RETENTION_HOURS",
        {"retention_hours": 23, "max_age_hours": 1},
        {"retention_hours": 24, "max_age_hours": 1},
    ),
    (
        "OUTBOX_RETENTION_HOURS",
        {"retention_hours": 100, "max_attempts": 200},
        {"retention_hours": 200, "max_attempts": 200},
    ),
    ("OUTBOX_LEASE_SECONDS", {"lease_seconds": 4, "sweep_seconds": 1}, {"lease_seconds": 5, "sweep_seconds": 1}),
    ("OUTBOX_SWEEP_SECONDS", {"sweep_seconds": 31}, {"sweep_seconds": 30}),
    ("OUTBOX_BATCH_SIZE", {"batch_size": 9}, {"batch_size": 10}),
    ("OUTBOX_MAX_PAYLOAD_BYTES", {"batch_size": 2049}, {"batch_size": 2048}),
    ("OUTBOX_MAX_ATTEMPTS", {"max_attempts": 1}, {"max_attempts": 2}),
    ("OUTBOX_MAX_AGE_HOURS", {"max_age_hours": 0.9}, {"max_age_hours": 1}),
    ("OUTBOX_UNHANDLED", {"unhandled": "deliver"}, {"unhandled": "fail"}),
    ("OUTBOX_PUBLISH_SECONDS", {"publish_seconds": 0}, {"publish_seconds": 60}),
    (
        "OUTBOX_WEBHOOK_SECRET",
        {"webhook_url": "https://example.com/"},
        {"webhook_url": "https://example.com/", "webhook_secret": outbox.webhooks.new_secret()},
    ),
    (
        "OUTBOX_DASHBOARD_PASSWORD",
        {"dashboard_host": "0.0.0.0", "dashboard_user": "ops"},  # noqa: S104  (nothing listens)
        {"dashboard_host": "0.0.0.0", "dashboard_user": "ops", "dashboard_password": "a word"},  # noqa: S104
    ),
]
