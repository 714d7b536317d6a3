"""Make the dashboard's ASGI application: its routes, its middleware, and its error pages."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from outbox.admin.lock_waits import describe_lock_timeout
from outbox.admin.web import pages
from outbox.admin.web.actions import act, confirm
from outbox.admin.web.actor import actor
from outbox.admin.web.allowed_hosts import AllowedHosts
from outbox.admin.web.audit import act_on_bulk, audit, audit_entry
from outbox.admin.web.authentication import Authenticate, Authentication, everything
from outbox.admin.web.control import act_on_control, control
from outbox.admin.web.dashboard import Dashboard, dashboard_of
from outbox.admin.web.destination import destination
from outbox.admin.web.forwarded_headers import ForwardedHeaders
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.keys import keys
from outbox.admin.web.login_link import LoginLinkAuthentication, LoginMiddleware
from outbox.admin.web.metrics import metrics
from outbox.admin.web.metrics_token import MetricsToken
from outbox.admin.web.passwords import Passwords, passwords_from_settings
from outbox.admin.web.periodic import act_on_periodic, periodic
from outbox.admin.web.permissions import Authorize
from outbox.admin.web.probes import Probes
from outbox.admin.web.render import STATIC, render
from outbox.admin.web.request_length import OneLength
from outbox.admin.web.scheduled import scheduled
from outbox.admin.web.security_headers import HEADERS, SecurityHeaders
from outbox.admin.web.streams import streams
from outbox.core import Outbox
from outbox.current_outbox import loaded_settings
from outbox.errors import SchemaError, SettingsError, as_sentence
from outbox.settings import Settings
from outbox.storage.connection_errors import CONNECTION_ERRORS, is_lock_timeout, is_statement_timeout

logger = logging.getLogger(__name__)


def make_app(
    box: Outbox | None = None,
    *,
    authenticate: Authenticate | None = None,
    authorize: Authorize | None = None,
    read_only: bool | None = None,
) -> Starlette:
    """Return the dashboard as an ASGI application, to be served alone or mounted in another application.

    `box` is the outbox to show; by default the one that `outbox.configure` or the environment has set up.
    `authenticate` gets the request and returns the user's name, or None to refuse. A blank name, or anything that is
    not a str, is refused as well. By default, the users of OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_USERS are
    accepted, with their passwords. `authorize` gets the request and the name, and returns the user's permissions: a
    collection of "view", "operate", "admin" and "payloads". By default the settings decide, and with an `authenticate`
    of your own every user has all of them. `read_only` defaults to OUTBOX_DASHBOARD_READ_ONLY.
    """
    settings = loaded_settings() if box is None else box.settings
    if authenticate is None:
        authenticate = _password_required(settings)
    if authorize is None:
        authorize = authenticate.authorize if isinstance(authenticate, Passwords) else everything
    dashboard = Dashboard(box, read_only=read_only)
    app = Starlette(
        routes=_routes(),
        middleware=_middleware(settings, authenticate, authorize, dashboard),
        exception_handlers={
            HTTPError: _http_error,
            HTTPException: _starlette_error,
            SchemaError: _schema_error,
            **dict.fromkeys(CONNECTION_ERRORS, _database_error),
            Exception: _internal_error,
        },
    )
    # Otherwise a path with a slash at its end would be redirected to an address that is built from the Host header.
    app.router.redirect_slashes = False
    app.state.dashboard = dashboard
    return app


def _routes() -> list[BaseRoute]:
    return [
        Route("/", pages.overview, name="overview"),
        Route("/events", pages.events, name="events"),
        Route("/events/{id}", pages.event, name="event"),
        Route("/keys", keys, name="keys"),
        Route("/audit", audit, name="audit"),
        Route("/bulk/act", act_on_bulk, name="act_on_bulk", methods=["POST"]),
        Route("/destination", destination, name="destination"),
        Route("/actor", actor, name="actor"),
        Route("/scheduled", scheduled, name="scheduled"),
        Route("/streams", streams, name="streams"),
        Route("/control", control, name="control"),
        Route("/control/act", act_on_control, name="act_on_control", methods=["POST"]),
        Route("/audit/{id}", audit_entry, name="audit_entry"),
        Route("/periodic", periodic, name="periodic"),
        Route("/periodic/act", act_on_periodic, name="act_on_periodic", methods=["POST"]),
        Route("/confirm", confirm, name="confirm"),
        Route("/act", act, name="act", methods=["POST"]),
        Route("/metrics", metrics, name="metrics"),
        Mount("/static", _Static(directory=STATIC), name="static"),
    ]


def _middleware(
    settings: Settings, authenticate: Authenticate, authorize: Authorize, dashboard: Dashboard
) -> list[Middleware]:
    """Return the middleware, the outermost first: refused requests get the security headers as well."""
    middleware = [Middleware(SecurityHeaders), Middleware(OneLength), Middleware(Probes, dashboard=dashboard)]
    if settings.dashboard_trusted_proxies:
        middleware.append(Middleware(ForwardedHeaders, trusted=settings.dashboard_trusted_proxies))
    if settings.dashboard_allowed_hosts:
        middleware.append(Middleware(AllowedHosts, allowed=settings.dashboard_allowed_hosts))
    if isinstance(authenticate, LoginLinkAuthentication):
        middleware.append(Middleware(LoginMiddleware, links=authenticate))
    token = MetricsToken(settings.metrics_token)
    middleware.append(Middleware(Authentication, authenticate=authenticate, authorize=authorize, metrics_token=token))
    return middleware


def _password_required(settings: Settings) -> Passwords:
    passwords = passwords_from_settings(settings)
    if passwords is None:
        raise SettingsError(
            "The dashboard has no password: set OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD, or "
            "pass make_app(authenticate=…), a function that returns the user's name, or None to refuse."
        )
    return passwords


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
    logger.warning("The dashboard can't use the database: %s Its pages say so until it can.", as_sentence(error))
    if is_statement_timeout(error):
        return render(
            request,
            "error.html",
            status=503,
            title="The database took too long",
            text="Another session may lock the table of events: the overview and `outbox doctor` say which.",
        )
    if is_lock_timeout(error):
        text = await run_in_threadpool(describe_lock_timeout, dashboard_of(request).box.dialect)
        return render(request, "error.html", status=503, title="Another session holds a lock", text=text)
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
