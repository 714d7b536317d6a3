"""A web application that emits an event at each request, for a real web server."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import outbox


def emit(request: Request) -> PlainTextResponse:
    with outbox.current().dialect.connection(), outbox.current().database.atomic():
        outbox.emit("Thing", "1", "thing.seen", {"do": "pass"}, idempotency_key=outbox.UNIQUE)
    return PlainTextResponse("emitted")


app = Starlette(routes=[Route("/", emit, methods=["POST"])])
