"""Insert processes into the table outbox_process, as if other processes had reported themselves."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

from outbox.core import Outbox
from outbox.storage.operator_models import Process
from outbox.telemetry.process_reports import WORKER

SETTINGS = {"queue": "outbox", "lease_seconds": 30.0, "max_run_seconds": 300.0}


def publish_process(
    box: Outbox,
    kind: str = WORKER,
    *,
    host: str = "alpha",
    pid: int = 1,
    seen: float = 0,
    started: float = 0,
    settings: dict[str, Any] | None = None,
    **details: Any,
) -> None:
    """Insert a process that last reported `seen` seconds ago, and started `started` seconds ago, with these details."""
    with box.dialect.connection():
        now = box.dialect.now()
        Process.insert(
            id=str(uuid4()),
            kind=kind,
            host=host,
            pid=pid,
            started_at=now - timedelta(seconds=started),
            seen_at=now - timedelta(seconds=seen),
            details={"version": "0.1.0", "publish_seconds": 10.0, "settings": SETTINGS | (settings or {})} | details,
        ).execute(box.database)


def published_handlers(**destinations: list[str] | None) -> dict[str, Any]:
    """Return handlers as a worker reports them: `published_handlers(billing=["order.*"])`."""
    return {name: {"kind": "Handler", "seconds": None, "events": events} for name, events in destinations.items()}
