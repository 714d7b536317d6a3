"""Make the dashboard's ASGI application: its routes, its middleware, and its error pages."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from outbox.admin.web import pages
from outbox.admin.web.actions import act, confirm
from outbox.admin.web.authentication import Authenticate, Authentication, Basic, basic_from_settings
from outbox.admin.web.dashboard import Dashboard
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.login_link import LoginLinkAuthentication, LoginMiddleware
from outbox.admin.web.metrics import metrics
from outbox.admin.web.periodic import act_on_periodic, periodic
from outbox.admin.web.render import STATIC, render
from outbox.admin.web.security_headers import HEADERS, SecurityHeaders
from outbox.core import Outbox
from outbox.current_outbox import loaded_settings
from outbox.errors import SchemaError, SettingsError
from outbox.settings import Settings
from outbox.storage.connection_errors import CONNECTION_ERRORS

logger = logging.getLogger(__name__)


def make_app(
    box: Outbox | None = None,
    *,
    authenticate: Authenticate | None = None,
    read_only: bool | None = None,
) -> Starlette:
    """Return the dashboard as an ASGI application, to be served alone or mounted in another application.

    `box` is the outbox to show; by default the one that `outbox.configure` or the environment has set up.
    `authenticate` gets the request and returns the user's name, or None to refuse. A blank name, or anything that is
    not a str, is refused as well. By default, OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD are required.
    `read_only` defaults to OUTBOX_DASHBOARD_READ_ONLY.
    """
    if authenticate is None:
        authenticate = _password_required(loaded_settings() if box is None else box.settings)
    app = Starlette(
        routes=[
            Route("/", pages.overview, name="overview"),
            Route("/events", pages.events, name="events"),
            Route("/events/{id}", pages.event, name="event"),
            Route("/audit", pages.audit, name="audit"),
            Route("/periodic", periodic, name="periodic"),
            Route("/periodic/act", act_on_periodic, name="act_on_periodic", methods=["POST"]),
            Route("/confirm", confirm, name="confirm"),
            Route("/act", act, name="act", methods=["POST"]),
            Route("/metrics", metrics, name="metrics"),
            Mount("/static", _Static(directory=STATIC), name="static"),
        ],
        # The outermost middleware is first, so that refused requests get the security headers as well.
        middleware=[
            Middleware(SecurityHeaders),
            *_login_middleware(authenticate),
            Middleware(Authentication, authenticate=authenticate),
        ],
        exception_handlers={
            HTTPError: _http_error,
            HTTPException: _starlette_error,
            SchemaError: _schema_error,
            **dict.fromkeys(CONNECTION_ERRORS, _database_error),
            Exception: _internal_error,
        },
    )
    app.state.dashboard = Dashboard(box, read_only=read_only)
    return app


def _password_required(settings: Settings) -> Basic:
    basic = basic_from_settings(settings)
    if basic is None:
        raise SettingsError(
            "The dashboard has no password: set OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD, or "
            "pass make_app(authenticate=…), a function that returns the user's name, or None to refuse."
        )
    return basic


def _login_middleware(authenticate: Authenticate) -> list[Middleware]:
    """Return the middleware that handles login links, if they are used. It comes before authentication."""
    return (
        [Middleware(LoginMiddleware, links=authenticate)] if isinstance(authenticate, LoginLinkAuthentication) else []
    )


class _Static(StaticFiles):
    """Static files that browsers revalidate at each use, so that they get a new version of the library at once."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response

    async def get_response(self, path: str, scope: Scope) -> Response:
        if "\x00" in path:
            raise HTTPException(404)
        return await super().get_response(path, scope)


# The pages for errors


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPError)  # noqa: S101  (the handler is registered for this class)
    return render(request, "error.html", status=error.status, title=error.title, text=error.text)


async def _starlette_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  (the handler is registered for this class)
    if error.status_code == 404:  # noqa: PLR2004  (not found)
        return render(request, "error.html", status=404, title="Page not found", text="Check the address.")
    return PlainTextResponse(error.detail, error.status_code, error.headers)


async def _schema_error(request: Request, error: Exception) -> Response:
    return render(request, "error.html", status=503, title="The tables are missing or out of date", text=str(error))


async def _database_error(request: Request, error: Exception) -> Response:
    # The driver's message is logged, not shown: it may contain names of users and hosts.
    logger.warning("The dashboard can't use the database: %s", str(error).strip())
    return render(
        request,
        "error.html",
        status=503,
        title="The database is unavailable",
        text="Events can neither be shown nor changed. See the dashboard's log for the error.",
    )


async def _internal_error(request: Request, error: Exception) -> Response:
    return HTMLResponse(
        "<!doctype html><title>Error</title><h1>Internal error</h1><p>See the dashboard's log.</p>", 500, HEADERS
    )
