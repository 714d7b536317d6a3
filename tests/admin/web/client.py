"""Requests to an ASGI application in this process: httpx's own way there, without a loop to look after."""

import asyncio
from typing import Any, cast

import httpx
from starlette.requests import HTTPConnection

HERE = "http://127.0.0.1:8642"


def anybody(connection: HTTPConnection) -> str:
    """For `make_app(authenticate=…)`, where who asks is not what is tested."""
    return "dashboard"


class Client:
    """Keeps cookies; an error that the application lets out is raised here."""

    def __init__(
        self, app: Any, *, base_url: str = HERE, client: tuple[str, int] | None = ("127.0.0.1", 50000)
    ) -> None:
        self._transport = httpx.ASGITransport(app, client=cast("tuple[str, int]", client))  # None: a Unix socket
        self._base_url = base_url
        self.cookies = httpx.Cookies()

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def request(self, method: str, path: str, *, follow_redirects: bool = True, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            # Not used as a context manager: it would close the transport.
            client = httpx.AsyncClient(transport=self._transport, base_url=self._base_url, cookies=self.cookies)
            answer = await client.request(method, path, follow_redirects=follow_redirects, **options)
            self.cookies = client.cookies
            return answer

        return asyncio.run(ask())
