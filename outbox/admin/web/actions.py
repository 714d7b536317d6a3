"""Serve the pages for an operator's action: `/confirm` shows what the action would do, and `/act` runs it."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outbox.admin import queries
from outbox.admin.web import csrf, parameters
from outbox.admin.web.action_request import ActionRequest, parse_action_request, read_form
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.parameters import query_string
from outbox.admin.web.permissions import OPERATE, needed_for, operator_of, require
from outbox.admin.web.render import render
from outbox.operations import apply_action
from outbox.operations.actions import DELETE

# How many of the selected events the confirmation page lists.
SAMPLE_SIZE = 5


async def confirm(request: Request) -> Response:
    """Show how many events the action would change, and how. This page changes nothing."""
    require(request, OPERATE)
    requested = parse_action_request(request.query_params)
    require(request, needed_for(requested.action))
    dashboard = dashboard_of(request)
    box = dashboard.box

    def query() -> dict[str, Any]:
        with box.dialect.bounded():
            return {
                "now": box.dialect.now(),
                "count": apply_action.count(
                    box.dialect, requested.complete_action(box), requested.filter, dashboard.count_cap
                ),
                "sample": queries.page(box.dialect, requested.filter, size=SAMPLE_SIZE).events if requested.ids else [],
                "targets": queries.destination_names(box.dialect, box.registry),
                "kinds": queries.kinds_of(box.dialect, requested.filter),
            }

    context = await run_in_threadpool(query)
    return render(request, "confirm.html", requested=requested, back=_back_path(request, requested), **context)


async def act(request: Request) -> Response:
    """Run the action that the confirmation page's form asks for, and redirect to the page that the operator came from.

    If the action takes long, it continues in the background, and the redirect leads to the audit log.
    """
    require(request, OPERATE)
    form = await read_form(request)
    csrf.check(request, form)
    requested = parse_action_request(form)
    require(request, needed_for(requested.action))
    words = requested.must_be_typed
    if words is not None and parameters.parse_text(form, "typed").strip() != words:
        raise HTTPError(400, "Nothing was deleted", f"To delete everything, type “{words}” on the page before.")
    dashboard = dashboard_of(request)
    action = await run_in_threadpool(requested.complete_action, dashboard.box)
    changed = await run_in_threadpool(
        dashboard.background_actions.run,
        dashboard.box,
        action,
        requested.filter,
        operator_of(request),
        dashboard.wait_seconds,
    )
    if changed is None:
        return RedirectResponse(dashboard.path(request, "audit") + f"?did={action.name}", 303)
    back = _back_path(request, requested)
    if requested.from_event_page and action.name == DELETE.name:
        back = dashboard.path(request, "events")
    return RedirectResponse(f"{back}{'&' if '?' in back else '?'}did={action.name}&number={changed}", 303)


def _back_path(request: Request, requested: ActionRequest) -> str:
    """Return the path of the page from which the operator came: one event, blocked keys, or the filtered list."""
    dashboard = dashboard_of(request)
    if requested.from_keys_page:
        return dashboard.path(request, "keys")
    if requested.from_event_page:
        return dashboard.path(request, "event", id=requested.ids[0])
    return dashboard.path(request, "events") + query_string(requested.parameters)
