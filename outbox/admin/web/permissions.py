"""Decide what a user of the dashboard may do, and refuse the rest.

`Authentication` stores the user's permissions with each request, and each page and action checks them here. A user
without a permission does not see the buttons that need it, but it is the check on the server that counts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from starlette.requests import HTTPConnection, Request

from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.password_attempts import address_of
from outbox.telemetry.audit import Operator
from outbox.text import printable

logger = logging.getLogger(__name__)

# See the pages, but no payloads; retry, replay, run and pause; also what ends or deletes something; see payloads.
VIEW, OPERATE, ADMIN, PAYLOADS = PERMISSIONS = ("view", "operate", "admin", "payloads")
# Only Prometheus has it, by its token. It can't be granted to a user.
METRICS = "metrics"
ALL = frozenset(PERMISSIONS)
# No other permission implies `payloads`: an operator who repairs deliveries need not read the data of customers.
_IMPLIED = {ADMIN: {OPERATE, VIEW}, OPERATE: {VIEW}, PAYLOADS: {VIEW}}

# A function that gets the request and the user's name, and returns the user's permissions. It may be a coroutine
# function.
Authorize = Callable[[HTTPConnection, str], Collection[str] | Awaitable[Collection[str]]]

# The keys of the ASGI scope that hold the user's name and permissions.
USER_KEY = "outbox.who"
PERMISSIONS_KEY = "outbox.permissions"


class HasDanger(Protocol):
    """An action on events or on a periodic job."""

    @property
    def is_dangerous(self) -> bool: ...


def check_permissions(given: object) -> frozenset[str] | None:
    """Return the permissions with those that they imply; None for anything but a collection of their names.

    A text is refused, although it is a collection of texts.
    """
    if isinstance(given, str) or not isinstance(given, Collection):
        return None
    if not all(isinstance(name, str) and name in ALL for name in given):
        return None
    return frozenset(given).union(*(_IMPLIED.get(name, set()) for name in given))


def needed_for(action: HasDanger) -> str:
    """Return the permission that an action needs."""
    return ADMIN if action.is_dangerous else OPERATE


def operator_of(request: Request) -> Operator:
    """Return who runs an action, for the audit log."""
    return Operator(request.scope[USER_KEY], via=f"dashboard, from {address_of(request)}")


def may(request: Request, permission: str) -> bool:
    """Return whether the user has this permission, and the dashboard is not read-only if it is one to change events."""
    if permission in (OPERATE, ADMIN) and dashboard_of(request).read_only:
        return False
    return permission in request.scope.get(PERMISSIONS_KEY, ())


def require(request: Request, permission: str) -> None:
    """Raise HTTPError (403) unless the user has this permission; the page says which one is missing."""
    if may(request, permission):
        return
    if permission in (OPERATE, ADMIN) and dashboard_of(request).read_only:
        raise HTTPError(403, "This dashboard is read-only", "Use the command line, or a dashboard that allows changes.")
    given = request.scope.get(PERMISSIONS_KEY, ())
    logger.warning(
        "The dashboard refused %s %s to %s: it needs the permission %s.",
        request.method,
        printable(request.url.path),
        printable(str(request.scope.get(USER_KEY, ""))),
        permission,
    )
    raise HTTPError(
        403,
        "You may not do this",
        f"It needs the permission “{permission}”, and you have "
        f"{', '.join(f'“{each}”' for each in PERMISSIONS if each in given) or 'none'}. "
        "The settings of the dashboard, or the application that mounts it, can grant it.",
    )
