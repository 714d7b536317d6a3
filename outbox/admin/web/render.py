"""Templates, and how values are written in them. Everything is escaped: all of it may come from anybody."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from outbox.admin.durations import format_duration
from outbox.admin.web import csrf
from outbox.admin.web.authentication import WHO
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.parameters import query_of
from outbox.storage.models import STATUSES
from outbox.version import __version__

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
# Beyond this a browser gets slow, and nobody reads on.
LONGEST_JSON = 100_000
REFRESH_SECONDS = 5


def ago(moment: datetime, now: datetime) -> str:
    """`3 min ago`, `in 5 s`, `now`"""
    span = now - moment
    if abs(span) < timedelta(seconds=1):
        return "now"
    return f"{_roughly(span)} ago" if span > timedelta(0) else f"in {_roughly(-span)}"


def _roughly(span: timedelta) -> str:
    """The largest unit alone."""
    return " ".join(format_duration(span).split()[:2])


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def short_id(id: UUID) -> str:
    """Its end: ids of the same minute begin alike."""
    return f"…{str(id)[-8:]}"


def seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def in_code(text: str) -> Markup:
    """What stands in backticks, as code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts)
    )


def pretty(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return (
        text if len(text) <= LONGEST_JSON else f"{text[:LONGEST_JSON]}\n… {len(text) - LONGEST_JSON:,} more characters"
    )


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for each in (ago, utc, in_code, short_id, seconds, pretty, format_duration):
        made.filters[each.__name__] = each
    made.globals |= {
        "query": query_of,
        "statuses": STATUSES,
        "version": __version__,
        "refresh_seconds": REFRESH_SECONDS,
    }
    return made


ENVIRONMENT = _environment()


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    dashboard = dashboard_of(request)
    token = csrf.token_of(request)
    text = ENVIRONMENT.get_template(template).render(
        path=lambda name, **values: dashboard.path(request, name, **values),
        here=dashboard.path(request) + request.url.path.removeprefix(request.scope.get("root_path", "")).lstrip("/"),
        asked=request.url.query,
        place=dashboard.box.dialect.place,
        read_only=dashboard.read_only,
        who=request.scope.get(WHO, ""),
        csrf=(csrf.FIELD, token),
        **context,
    )
    response = HTMLResponse(text, status)
    csrf.set_cookie(response, request, token)
    return response
