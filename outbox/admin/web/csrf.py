"""Protect the dashboard's forms against cross-site request forgery (CSRF).

There are two checks. Browsers send the site that a request comes from (`Sec-Fetch-Site`, `Origin`), and it must be the
dashboard itself. And each form contains a token that the browser also has in a cookie. Another site can make the
browser send the cookie, but can't read the cookie, so it can't put the token into a form.
"""

from __future__ import annotations

import re
import secrets
from hmac import compare_digest
from urllib.parse import urlsplit

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from outbox.admin.web.http_errors import HTTPError

COOKIE = "outbox_csrf"
FORM_FIELD = "csrf_token"
TOKEN_PATTERN = re.compile(r"[A-Za-z0-9_-]{43}")


def token_of(request: Request) -> str:
    """Return the token in the browser's cookie, or a new token."""
    given = request.cookies.get(COOKIE, "")
    return given if TOKEN_PATTERN.fullmatch(given) else secrets.token_urlsafe(32)


def set_cookie(response: Response, request: Request, token: str) -> None:
    """Set the token's cookie, unless the browser has it already."""
    if request.cookies.get(COOKIE) != token:
        path = request.scope.get("root_path", "") or "/"
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, token, path=path, secure=secure, httponly=True, samesite="strict")


def check(request: Request, form: QueryParams) -> None:
    """Raise HTTPError (403) unless the form was sent from the dashboard's own page and has the cookie's token."""
    if not _is_same_origin(request):
        raise HTTPError(403, "This request came from another site", "Open the dashboard, and run the action there.")
    expected, given = request.cookies.get(COOKIE, ""), form.get(FORM_FIELD, "")
    if not (TOKEN_PATTERN.fullmatch(expected) and compare_digest(given.encode(errors="replace"), expected.encode())):
        raise HTTPError(403, "This form is out of date", "Go back, reload the page, and try again. Cookies are needed.")


def _is_same_origin(request: Request) -> bool:
    """Return whether the browser's headers name the dashboard as the origin, or are missing.

    All current browsers send one of the headers. A client that sends neither still needs the token.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower() != ""
    except ValueError:
        return False
