"""What is logged, for programs: fields beside the words, and a line of JSON for each record on request.

Neither payloads nor secrets are logged, as text or as fields.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

TEXT, JSON = "text", "json"

# Names of fields begin with this in a record, so that none collides with the record's own; in JSON they don't.
PREFIX = "outbox_"


def fields(**values: object) -> dict[str, object]:
    """For `extra=`; what is None is left out."""
    return {PREFIX + name: value for name, value in values.items() if value is not None}


class JsonFormatter(logging.Formatter):
    """A record as a line of JSON: time, level, logger, message, process and thread, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            "thread": record.threadName,
        }
        for name, value in vars(record).items():
            if name.startswith(PREFIX):
                line.setdefault(name.removeprefix(PREFIX), value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, default=str)


def set_up(form: str, text: str) -> None:
    """Logging of a process of our own, from INFO on: as `text`, or as JSON."""
    logging.basicConfig(level=logging.INFO, format=text)
    rewrite(form)


def rewrite(form: str) -> None:
    """In a process whose logging somebody else has set up: leave it as it is, but write JSON if that is asked for."""
    # At DEBUG it tells every parameter of every statement, payloads included.
    logging.getLogger("peewee").setLevel(logging.INFO)
    if form == JSON:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
