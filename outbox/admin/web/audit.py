"""Serve the audit log: the latest actions of operators, and everything about one of them."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from uuid import UUID

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outbox.admin.web import csrf, parameters
from outbox.admin.web.action_request import read_form
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.pages import notice
from outbox.admin.web.permissions import ADMIN, OPERATE, VIEW, may, needed_for, operator_of, require
from outbox.admin.web.render import render
from outbox.errors import RegistrationError
from outbox.operations import bulk_actions
from outbox.operations.actions import ACTIONS
from outbox.operations.bulk_actions import bulk_action_of
from outbox.storage.operator_models import Audit
from outbox.telemetry.audit import changed_ids, find, latest

STOP, RESUME = "stop", "resume"
NOTICES = {
    STOP: "The action stops after its current batch.",
    RESUME: "The action continues where it stopped; the audit log has another entry for it.",
}

# How many ids of changed events the page of an entry lists.
LISTED_IDS = 1_000


async def audit(request: Request) -> Response:
    """List the latest actions of operators."""
    require(request, VIEW)
    box = dashboard_of(request).box

    def query() -> tuple[datetime, list[Audit]]:
        with box.dialect.bounded():
            return box.dialect.now(), latest(box.dialect)

    now, entries = await run_in_threadpool(query)
    bulks = {entry.id: bulk for entry in entries if (bulk := bulk_action_of(entry, now)) is not None}
    said = NOTICES.get(request.query_params.get("bulk", ""), notice(request))
    return render(request, "audit.html", now=now, entries=entries, bulks=bulks, notice=said)


async def audit_entry(request: Request) -> Response:
    """Show one action: who, what, how it ended, and the ids of the events that it has changed."""
    require(request, VIEW)
    id = parameters.parse_id(request.path_params["id"])
    box = dashboard_of(request).box

    def query() -> tuple[datetime, Audit | None, list[UUID]]:
        with box.dialect.bounded():
            return box.dialect.now(), find(box.dialect, id), list(changed_ids(box.dialect, id, LISTED_IDS))

    now, entry, ids = await run_in_threadpool(query)
    if entry is None:
        raise HTTPError(404, "Audit entry not found", f"{id} does not exist, or was deleted after 90 days.")
    bulk = bulk_action_of(entry, now)
    return render(
        request,
        "audit_entry.html",
        now=now,
        entry=entry,
        ids=ids,
        bulk=bulk,
        notice=NOTICES.get(request.query_params.get("bulk", "")),
        may_control=bulk is not None and may(request, needed_for(ACTIONS[entry.action]))
        if entry.action in ACTIONS
        else may(request, ADMIN),
    )


async def act_on_bulk(request: Request) -> Response:
    """Stop or resume an action on many events, and redirect to its page."""
    require(request, OPERATE)
    form = await read_form(request)
    csrf.check(request, form)
    dashboard, id = dashboard_of(request), parameters.parse_id(parameters.parse_text(form, "id"))
    box, who = dashboard.box, operator_of(request)
    what = parameters.parse_text(form, "action")
    entry = await run_in_threadpool(find, box.dialect, id)
    known = ACTIONS.get("" if entry is None else entry.action)
    require(request, ADMIN if known is None else needed_for(known))
    page = dashboard.path(request, "audit_entry", id=id)
    try:
        if what == STOP:
            await run_in_threadpool(partial(bulk_actions.stop, box.dialect, id, operator=who))
        elif what == RESUME:
            begin = partial(
                bulk_actions.resume, box.dialect, box.notifier.notify_after_commit, box.registry, id, operator=who
            )
            work = await run_in_threadpool(begin)
            await run_in_threadpool(
                dashboard.background_actions.run_work, "resume", who, lambda: work, dashboard.wait_seconds
            )
            page = dashboard.path(request, "audit")
        else:
            raise HTTPError(400, "Unknown action", f"“action” must be {STOP} or {RESUME}.")
    except RegistrationError as error:
        raise HTTPError(400, "This can't be done", str(error)) from None
    return RedirectResponse(f"{page}?bulk={what}", 303)
