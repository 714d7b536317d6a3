"""Whatever bytes reach the dashboard, past what a browser would send: a page or a refusal, never an error of ours."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.admin.web import make_app
from outbox.admin.web.login_link import LoginLinkAuthentication
from outbox.core import Outbox
from tests.admin.web.client import anybody
from tests.admin.web.sample import delivered, failed, waiting
from tests.support.thoroughness import thorough

PATHS = [
    b"/",
    b"/events",
    b"/events/",
    b"/events/x",
    b"/audit",
    b"/periodic",
    b"/periodic/act",
    b"/confirm",
    b"/act",
    b"/metrics",
    b"/login",
    b"/static/",
    b"//",
    b"/static/../app.py",
]
QUERIES = [
    b"", b"&", b"=", b"%", b"%zz", b"a=%00", b"status=%ff", b"status=failed&status=pending", b"after=" + b"9" * 5_000,
    b"&".join(b"x=1" for _ in range(500)), b"q=%ed%a0%80", b";", b"since=2026-01-01&until=", b"id=" * 500,
    b"token=", b"token=%ff", b"token=\xff", b"token=" + b"a" * 43 + b"&token=x",
]  # fmt: skip
HEADERS = [
    (b"host", b"127.0.0.1"), (b"host", b"\xff"), (b"host", b"["), (b"host", b""), (b"host", b"evil.example"),
    (b"cookie", b"outbox_csrf=" + b"a" * 43), (b"cookie", b"\xff;=;;outbox_csrf"), (b"cookie", b"x" * 5_000),
    (b"origin", b"null"), (b"origin", b"http://["), (b"origin", b"\xff"), (b"sec-fetch-site", b"same-origin"),
    (b"content-type", b"application/x-www-form-urlencoded"), (b"content-type", b"multipart/form-data; boundary=x"),
    (b"content-type", b"multipart/form-data"), (b"content-type", b"application/json"), (b"content-type", b"\xff/\xff"),
    (b"content-length", b"-1"), (b"content-length", b"x"), (b"content-length", b"99999999999"),
    (b"authorization", b"Basic \xff"), (b"authorization", b"Basic"), (b"accept", b"\xff"), (b"hx-request", b"true"),
    (b"if-modified-since", b"\xff"), (b"range", b"bytes=5-1,x"), (b"if-none-match", b'W/"\xff"'),
]  # fmt: skip
BODIES = [
    b"", b"a=b", b"%zz=%00", b"action=retry&scope=all&csrf_token=" + b"a" * 43, b"\xff" * 100, b"{}", b"--x\r\n\r\n",
    b'--x\r\nContent-Disposition: form-data; name="action"; filename="f"\r\n\r\nretry\r\n--x--\r\n', b"x=" * 500,
    b"action=" + b"x" * 200_000,
]  # fmt: skip


@pytest.fixture(params=[lambda: anybody, LoginLinkAuthentication], ids=["signed-in", "login-link"])
def app(box: Outbox, request: pytest.FixtureRequest) -> Any:
    failed(), delivered(), waiting()
    return make_app(box, authenticate=request.param())


def ask(app: Any, method: str, address: tuple[bytes, bytes], headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    """The status. As a server would call it; an error that the application lets out is raised here."""
    path, query = address
    said: list[int] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            said.append(message["status"])

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path.decode(errors="replace"), "raw_path": path, "query_string": query, "root_path": "",
        "headers": headers, "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 8642),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    (status,) = said
    return status


addresses = st.tuples(
    st.sampled_from(PATHS) | st.binary(max_size=20).map(lambda rest: b"/" + rest),
    st.sampled_from(QUERIES) | st.binary(max_size=40),
)
headings = st.lists(st.sampled_from(HEADERS) | st.tuples(st.just(b"x-odd"), st.binary(max_size=20)), max_size=5)
# From this machine, as far as it says; else most requests would end at the door.
known = headings.map(lambda headers: [(b"host", b"127.0.0.1:8642"), *headers])


@thorough(200)
@given(
    method=st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "PUT", "\u00e9"]),
    address=addresses,
    headers=known | headings,
    body=st.sampled_from(BODIES) | st.binary(max_size=60),
)
def test_any_request_is_answered(
    app: Any, method: str, address: tuple[bytes, bytes], headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    assert ask(app, method, address, headers, body) < 500
