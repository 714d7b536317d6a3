"""Write logs in which each line is ours: as text with escapes, or as lines of JSON if OUTBOX_LOG_FORMAT is `json`.

Neither payloads nor secrets are logged, as text or as fields.

The formatters of the root logger's handlers are wrapped (text) or replaced (JSON) only in a process that was started to
run this library: by a command of `outbox`, by the scheduler, or as a worker by Dramatiq's program. The logging of an
application's own process is left as it is.
"""

from __future__ import annotations

import copy
import json
import logging
from datetime import UTC, datetime
from typing import Any

from outbox.text import visible

JSON = "json"

# In a log record the names of our fields begin with this, so that they don't collide with the record's own attributes.
# In JSON the prefix is left out.
PREFIX = "outbox_"

# How the commands write a log line, unless as JSON.
TEXT_FORMAT = "%(asctime)s %(levelname)s %(message)s"
# Each line of a traceback begins with this.
INDENT = "    "


def fields(**values: object) -> dict[str, object]:
    """Return the fields for the argument `extra` of a logging call; a field that is None is left out."""
    return {PREFIX + name: value for name, value in values.items() if value is not None}


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON: time, level, logger, message, process and thread, and its fields."""

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


class TextFormatter(logging.Formatter):
    """Formats a record as another formatter does, but so that nothing in it can look like a line of its own.

    Names and errors may contain line breaks and terminal escapes. In the message they are escaped. A traceback has
    several lines; each of them is indented, because a log line never is.
    """

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        safe = copy.copy(record)
        safe.msg, safe.args = visible(record.getMessage()), None
        if record.exc_info:
            safe.exc_text = _indented(self._inner.formatException(record.exc_info))
        if record.stack_info:
            safe.stack_info = _indented(record.stack_info)
        return self._inner.format(safe)


def _indented(text: str) -> str:
    return "\n".join(INDENT + visible(line) for line in text.splitlines())


def set_up(log_format: str, text_format: str = TEXT_FORMAT) -> None:
    """Set up logging from INFO on, as text in this format or as JSON, in a process that runs only this library."""
    logging.basicConfig(level=logging.INFO, format=text_format)
    hide_statement_parameters()
    use_format(log_format)


def use_format(log_format: str) -> None:
    """Let the root logger's handlers write JSON if `log_format` is `json`, and otherwise their text with escapes."""
    for handler in logging.getLogger().handlers:
        if log_format == JSON:
            handler.setFormatter(JsonFormatter())
        elif not isinstance(handler.formatter, TextFormatter):
            handler.setFormatter(TextFormatter(handler.formatter or logging.Formatter()))


def hide_statement_parameters() -> None:
    """Raise the level of Peewee's logger: at DEBUG it logs the parameters of every statement, payloads included."""
    logging.getLogger("peewee").setLevel(logging.INFO)
