"""The example's receiver on Starlette, with a point at which it can be made to die."""

from starlette.types import Message, Receive, Scope, Send

from examples.receivers.with_starlette import app as receiver
from tests.apps import crash_point


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    async def may_die(message: Message) -> None:
        if message["type"] == "http.response.start":
            crash_point.before_answering(message["status"])
        await send(message)

    await receiver(scope, receive, may_die)
