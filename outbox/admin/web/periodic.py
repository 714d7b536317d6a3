"""Serve the page of the periodic jobs, and run what its buttons ask for."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outbox.admin.periodic_jobs import read_periodic_jobs
from outbox.admin.web import csrf, parameters
from outbox.admin.web.action_request import read_form
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.permissions import OPERATE, VIEW, needed_for, operator_of, require
from outbox.admin.web.render import render
from outbox.errors import RegistrationError
from outbox.operations import periodic_jobs
from outbox.operations.periodic_jobs import FORGET, PAUSE, PERIODIC_ACTIONS, RESUME, RUN_NOW

# What the page says after an action. Only the action's name is taken from the URL, so a link can't show other text.
NOTICES = {
    RUN_NOW.name: "The job will run as soon as a scheduler that has it looks, within a second or two.",
    PAUSE.name: "The job is paused: no runs are stored until it is resumed.",
    RESUME.name: "The job is resumed: its next run is at its next scheduled time.",
    FORGET.name: "The job is forgotten.",
}


async def periodic(request: Request) -> Response:
    """List the periodic jobs: schedule, last run and next run."""
    require(request, VIEW)
    dialect = dashboard_of(request).box.dialect
    views = await run_in_threadpool(read_periodic_jobs, dialect)
    return render(
        request,
        "periodic.html",
        views=views,
        now=views[0].now if views else None,
        notice=NOTICES.get(request.query_params.get("did", "")),
    )


async def act_on_periodic(request: Request) -> Response:
    """Run, pause, resume or forget a job, as the page's form asks for, and redirect to the page."""
    require(request, OPERATE)
    form = await read_form(request)
    csrf.check(request, form)
    action = PERIODIC_ACTIONS.get(parameters.parse_text(form, "action"))
    if action is None:
        raise HTTPError(400, "Unknown action", f"“action” must be one of {', '.join(PERIODIC_ACTIONS)}.")
    require(request, needed_for(action))
    name, operator = parameters.parse_text(form, "name"), operator_of(request)
    dashboard = dashboard_of(request)

    def run() -> None:
        periodic_jobs.apply(dashboard.box.dialect, action, name, operator=operator)

    try:
        await run_in_threadpool(run)
    except RegistrationError as error:
        raise HTTPError(400, "This can't be done", str(error)) from None
    return RedirectResponse(f"{dashboard.path(request, 'periodic')}?did={action.name}", 303)
