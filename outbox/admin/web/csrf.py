"""Changes come from our own forms, not from another page in the same browser.

A form carries the token that the browser also has in a cookie: another site can make the browser send the cookie, but
can't read it to fill in the form. And browsers say themselves where a request comes from.
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
FIELD = "csrf_token"
TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def token_of(request: Request) -> str:
    """The browser's token, or a new one."""
    given = request.cookies.get(COOKIE, "")
    return given if TOKEN.fullmatch(given) else secrets.token_urlsafe(32)


def remember(response: Response, request: Request, token: str) -> None:
    if request.cookies.get(COOKIE) != token:
        path = request.scope.get("root_path", "") or "/"
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, token, path=path, secure=secure, httponly=True, samesite="strict")


def check(request: Request, form: QueryParams) -> None:
    if not _is_from_here(request):
        raise HTTPError(403, "This request came from another page", "Open the dashboard itself, and do it there.")
    expected, given = request.cookies.get(COOKIE, ""), form.get(FIELD, "")
    if not (TOKEN.fullmatch(expected) and compare_digest(given.encode(errors="replace"), expected.encode())):
        raise HTTPError(403, "This form is out of date", "Go back, reload the page, and try again. Cookies are needed.")


def _is_from_here(request: Request) -> bool:
    """By what browsers add; a program that adds nothing has the token at least."""
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
