"""Render the templates, and define the filters that format values in them.

Every value is escaped, because events, errors and names may contain anything, including HTML. Characters that are not
printable are shown as escapes: some of them set the writing direction, so that a text looks like another one.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from outbox.admin.blocked_keys import describe_head
from outbox.admin.doctor.check import Finding
from outbox.admin.durations import format_bound, format_duration, format_latency, format_rate, format_seconds
from outbox.admin.history import RANGES
from outbox.admin.web import csrf
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.json_tree import json_tree
from outbox.admin.web.parameters import query_string
from outbox.admin.web.permissions import USER_KEY, may, needed_for
from outbox.admin.web.sparkline import sparkline
from outbox.storage.models import KINDS, STATUSES
from outbox.storage.status import is_parked
from outbox.text import visible_json, visible_lines
from outbox.version import __version__

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
# Longer JSON is cut, because it would make the browser slow.
MAX_JSON_LENGTH = 100_000
# The places in a name after which a line may be broken.
PUNCTUATION = re.compile(r"(?<=[._:/@-])(?=[^._:/@-])")
REFRESH_SECONDS = 5


def ago(moment: datetime, now: datetime) -> str:
    """Return `3 min ago`, `in 5 s` or `now`."""
    span = now - moment
    if abs(span) < timedelta(seconds=1):
        return "now"
    return f"{_largest_unit(span)} ago" if span > timedelta(0) else f"in {_largest_unit(-span)}"


def _largest_unit(span: timedelta) -> str:
    """Return the duration in its largest unit: `3 min` instead of `3 min 20 s`."""
    return " ".join(format_duration(span).split()[:2])


def utc(moment: datetime) -> str:
    """Return `2026-01-31 12:00:00 UTC`."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def short_id(id: UUID) -> str:
    """Return the end of the id, because ids of the same minute begin with the same digits."""
    return f"…{str(id)[-8:]}"


def in_code(text: str) -> Markup:
    """Return the escaped text with the parts between backticks as <code>."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts)
    )


def breakable(text: str) -> Markup:
    """Return the text with places at which a browser may break its line: after punctuation, and not within a word."""
    parts = PUNCTUATION.split(_show(text))
    return Markup("<wbr>").join(parts)


def heading(finding: Finding) -> str:
    """Return a finding in a few words as a heading: with a capital letter, unless it begins with a name."""
    brief = finding.brief
    begins_with_name = brief.split()[0] == finding.what.split()[0]
    return brief if begins_with_name else brief[0].upper() + brief[1:]


def format_scale(seconds: float) -> str:
    """Return a power of ten of a second, for the scale of a chart: `10 ms`, `1 s`, `1,000 s`."""
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:,.0f} s"


def pretty(value: Any) -> str:
    """Return the value as indented JSON, cut if it is very long."""
    text = visible_json(json.dumps(value, indent=2, ensure_ascii=False))
    left_out = len(text) - MAX_JSON_LENGTH
    return text if left_out <= 0 else f"{text[:MAX_JSON_LENGTH]}\n… {left_out:,} more characters"


class _Exact(str):
    """A text that is not shown, but sent back to the server by a form."""

    __slots__ = ()


def exact(value: Any) -> str:
    """Return the text for the attribute `value` of a field: it must come back as it is, so nothing is replaced."""
    return _Exact(value)


def _show(value: Any) -> Any:
    """Return the value with escapes for the characters that are not printable, except line breaks and tabs."""
    if not isinstance(value, str) or isinstance(value, _Exact):
        return value
    shown = "\t".join(map(visible_lines, value.split("\t")))
    return Markup(shown) if isinstance(value, Markup) else shown  # noqa: S704  (it was markup before)


FILTERS = (
    ago, breakable, exact, format_bound, format_duration, format_latency, format_rate, format_scale, format_seconds,
    heading, in_code, json_tree, pretty, short_id, sparkline, utc,
)  # fmt: skip


def _make_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        finalize=_show,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for each in FILTERS:
        environment.filters[each.__name__] = each
    environment.tests |= {"parked": is_parked, "printable": str.isprintable}
    environment.globals |= {
        "all_ranges": RANGES,
        "describe_head": describe_head,
        "query": query_string,
        "statuses": STATUSES,
        "kinds_of_rows": KINDS,
        "version": __version__,
        "refresh_seconds": REFRESH_SECONDS,
    }
    return environment


ENVIRONMENT = _make_environment()


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """Return the template as a response, with the values that every page needs and the CSRF token's cookie."""
    dashboard = dashboard_of(request)
    token = csrf.token_of(request)
    path_below_mount = request.url.path.removeprefix(request.scope.get("root_path", "")).lstrip("/")
    text = ENVIRONMENT.get_template(template).render(
        path=lambda name, **values: dashboard.path(request, name, **values),
        current_path=dashboard.path(request) + path_below_mount,
        current_query=request.url.query,
        place=dashboard.box.dialect.place,
        read_only=dashboard.read_only,
        who=request.scope.get(USER_KEY, ""),
        may=lambda permission: may(request, permission),
        may_run=lambda action: may(request, needed_for(action)),
        csrf=(csrf.FORM_FIELD, token),
        **context,
    )
    response = HTMLResponse(text, status)
    csrf.set_cookie(response, request, token)
    return response
