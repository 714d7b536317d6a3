"""What is done: a page that says what will happen and to how many, and the form on it that does it."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outbox.admin import queries
from outbox.admin.overview import database_now
from outbox.admin.web import csrf, parameters
from outbox.admin.web.authentication import WHO
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.render import render
from outbox.core import Outbox
from outbox.errors import RegistrationError
from outbox.operations import apply_action
from outbox.operations.actions import ACTIONS, Action, with_parameters
from outbox.operations.filters import Filter

logger = logging.getLogger("outbox")

# A browser waits so long for the answer; what takes longer goes on without it.
PATIENCE_SECONDS = 3.0
SAMPLE = 5
MOST_FIELDS = 2 * parameters.MOST_IDS
FORM_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants to be done, to which events, and where they came from."""

    action: Action
    which: Filter
    ids: tuple[str, ...]
    reason: str
    to: str | None
    parameters: dict[str, str]
    from_event: bool

    def complete_action(self, box: Outbox) -> Action:
        """Return the action with the reason or the destination that was entered."""
        try:
            return with_parameters(self.action, box.dialect, box.registry, reason=self.reason, destination=self.to)
        except RegistrationError as error:
            raise HTTPError(400, "Where to?", str(error)) from None

    @property
    def fields(self) -> list[tuple[str, str]]:
        """As hidden fields of the form that does it."""
        return [
            ("action", self.action.name),
            ("scope", "selected" if self.ids else "all"),
            *(("id", id) for id in self.ids),
            *self.parameters.items(),
            *([("from", "event")] if self.from_event else []),
        ]


async def confirm(request: Request) -> Response:
    """Changes nothing: how many it would be, and what would become of them."""
    _check_writable(request)
    wish = wish_of(request.query_params)
    box = dashboard_of(request).box

    def look() -> dict[str, Any]:
        with box.dialect.connection():
            return {
                "now": database_now(box.dialect),
                "count": apply_action.count(box.dialect, wish.complete_action(box), wish.which),
                "sample": queries.page(box.dialect, wish.which, size=SAMPLE).events if wish.ids else [],
                "targets": queries.destination_names(box.dialect, box.registry),
            }

    found = await run_in_threadpool(look)
    return render(request, "confirm.html", wish=wish, back=_back(request, wish), **found)


async def act(request: Request) -> Response:
    _check_writable(request)
    form = await _form(request)
    csrf.check(request, form)
    wish = wish_of(form)
    dashboard = dashboard_of(request)
    action = await run_in_threadpool(wish.complete_action, dashboard.box)
    done = await run_in_threadpool(undertake, dashboard.box, action, wish.which, request.scope[WHO])
    if done is None:
        return RedirectResponse(dashboard.path(request, "audit") + f"?did={wish.action.name}", 303)
    back = _back(request, wish)
    if wish.from_event and wish.action.name == "delete":
        back = dashboard.path(request, "events")
    return RedirectResponse(f"{back}{'&' if '?' in back else '?'}did={wish.action.name}&number={done}", 303)


def wish_of(given: QueryParams) -> Wish:
    action = ACTIONS.get(parameters.text(given, "action"))
    if action is None:
        raise HTTPError(400, "What should be done?", f"“action” must be one of {', '.join(ACTIONS)}.")
    which = _before(parameters.filter_of(given), parameters.moment(given, "before"))
    ids = parameters.ids_of(given.getlist("id"))
    scope = parameters.text(given, "scope")
    if scope not in ("all", "selected") or (scope == "selected" and not ids):
        raise HTTPError(400, "Which events?", "Go back and tick some, or choose all that match.")
    return Wish(
        action=action,
        which=which if scope == "all" else Filter(ids=ids),
        ids=tuple(map(str, ids)) if scope == "selected" else (),
        reason=parameters.text(given, "reason"),
        to=parameters.text(given, "to") or None,
        parameters=parameters.parameters_of(given),
        from_event=given.get("from") == "event" and scope == "selected",
    )


def _before(which: Filter, moment: datetime | None) -> Filter:
    """What was emitted while somebody read what would happen is not meant."""
    if moment is None or (which.until is not None and which.until <= moment):
        return which
    return which.with_(until=moment)


def undertake(box: Outbox, action: Action, which: Filter, who: str) -> int | None:
    """Do it; answers how many that were, or None if it takes long: then it goes on, and the audit tells how far it is.

    Should the process end before it has, what was done is done, whole batches each, and the rest is as it was.
    """
    done: list[int] = [0]
    errors: list[Exception] = []

    def run() -> None:
        try:
            for so_far in apply_action.apply(box.dialect, box.notifier.notify_after_commit, action, which, who=who):
                done[0] = so_far
        except Exception as error:
            errors.append(error)
            if late.is_set():
                logger.exception("%s by %s ended early, after %d events", action.name, who, done[0])

    late = threading.Event()
    thread = threading.Thread(target=run, name=f"outbox-{action.name}", daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    if thread.is_alive():
        late.set()
        return None
    if errors:
        raise errors[0]
    return done[0]


def _check_writable(request: Request) -> None:
    if dashboard_of(request).read_only:
        raise HTTPError(403, "This dashboard is read-only", "Changes are made on the command line, or elsewhere.")


async def _form(request: Request) -> QueryParams:
    """As browsers send one without files; no more of it is read than one of ours can have."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES:
            raise HTTPError(413, "That form is too large", "Choose all that match a filter instead.")
    try:
        return QueryParams(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise HTTPError(400, "That form can't be read", "Go back, reload the page, and try again.") from None


def _back(request: Request, wish: Wish) -> str:
    dashboard = dashboard_of(request)
    if wish.from_event:
        return dashboard.path(request, "event", id=wish.ids[0])
    return dashboard.path(request, "events") + parameters.query_of(wish.parameters)
