"""The application: routes, and the layers around them."""

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
from outbox.admin.web.authentication import Authenticate, Authentication, Basic
from outbox.admin.web.dashboard import Dashboard
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.login_link import Login, LoginLink
from outbox.admin.web.metrics import metrics
from outbox.admin.web.render import STATIC, render
from outbox.admin.web.security_headers import HEADERS, SecurityHeaders
from outbox.core import Outbox
from outbox.current_outbox import loaded_settings
from outbox.errors import SchemaError, SettingsError
from outbox.settings import Settings
from outbox.storage.dialect import CONNECTION_ERRORS

logger = logging.getLogger("outbox")


def make_app(
    box: Outbox | None = None,
    *,
    authenticate: Authenticate | None = None,
    read_only: bool | None = None,
) -> Starlette:
    """The dashboard as an ASGI application, to be served by itself or mounted in another.

    `box` is the package's own by default. `authenticate` gets the request and returns the user's name, or None to
    refuse; anything but a text that is not blank is refused. By default it wants OUTBOX_DASHBOARD_USER and
    OUTBOX_DASHBOARD_PASSWORD. `read_only` defaults to OUTBOX_DASHBOARD_READ_ONLY.
    """
    if authenticate is None:
        authenticate = _by_password(loaded_settings() if box is None else box.settings)
    app = Starlette(
        routes=[
            Route("/", pages.overview, name="overview"),
            Route("/events", pages.events, name="events"),
            Route("/events/{id}", pages.event, name="event"),
            Route("/audit", pages.audit, name="audit"),
            Route("/confirm", confirm, name="confirm"),
            Route("/act", act, name="act", methods=["POST"]),
            Route("/metrics", metrics, name="metrics"),
            Mount("/static", _Static(directory=STATIC), name="static"),
        ],
        # The outermost first: refusals carry the headers, too.
        middleware=[
            Middleware(SecurityHeaders),
            *_login(authenticate),
            Middleware(Authentication, authenticate=authenticate),
        ],
        exception_handlers={
            HTTPError: _refused,
            HTTPException: _not_here,
            SchemaError: _no_tables,
            **dict.fromkeys(CONNECTION_ERRORS, _no_database),
            Exception: _broken,
        },
    )
    app.state.dashboard = Dashboard(box, read_only=read_only)
    return app


def credentials(settings: Settings) -> Basic | None:
    """User and password, if both are set."""
    user, password = settings.dashboard_user, settings.dashboard_password
    if (user is None) != (password is None):
        raise SettingsError("OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD go together: set both, or neither.")
    return None if user is None or password is None else Basic(user, password)


def _by_password(settings: Settings) -> Basic:
    found = credentials(settings)
    if found is None:
        raise SettingsError(
            "The dashboard would be open to everybody: set OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD, or "
            "pass make_app(authenticate=…), a function that returns the user's name, or None to refuse."
        )
    return found


def _login(authenticate: Authenticate) -> list[Middleware]:
    """Who opens a login link is not known yet: it is looked at before the check."""
    return [Middleware(Login, link=authenticate)] if isinstance(authenticate, LoginLink) else []


class _Static(StaticFiles):
    """Asked for anew each time, and answered with "not modified": a new version is seen at once."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response

    async def get_response(self, path: str, scope: Scope) -> Response:
        if "\x00" in path:
            raise HTTPException(404)
        return await super().get_response(path, scope)


# Errors, as pages


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPError)  # noqa: S101  (what it is registered for)
    return render(request, "error.html", status=error.status, title=error.title, text=error.text)


async def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  (likewise)
    if error.status_code == 404:  # noqa: PLR2004  (not found)
        return render(request, "error.html", status=404, title="There is no such page", text="It may have moved.")
    return PlainTextResponse(error.detail, error.status_code, error.headers)


async def _no_tables(request: Request, error: Exception) -> Response:
    return render(request, "error.html", status=503, title="The tables are not there yet", text=str(error))


async def _no_database(request: Request, error: Exception) -> Response:
    # The driver's words stay in the log: they may name users and hosts.
    logger.warning("the dashboard can't use the database: %s", str(error).strip())
    return render(
        request,
        "error.html",
        status=503,
        title="The database does not answer",
        text="Events can neither be shown nor changed. The log of the dashboard has the reason.",
    )


async def _broken(request: Request, error: Exception) -> Response:
    return HTMLResponse(
        "<!doctype html><title>Error</title><h1>Something is broken</h1><p>See the log.</p>", 500, HEADERS
    )
