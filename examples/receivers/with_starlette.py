"""The receiver on Starlette: `uvicorn examples.receivers.with_starlette:app`. In FastAPI the function is the same."""

from __future__ import annotations

import json
import logging
import os

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from examples.receivers import ledger
from outbox import webhooks

SECRETS = os.environ["LEDGER_SECRET"].split()  # two of them while you rotate the secret

ledger.open_ledger()
logger = logging.getLogger("receiver")


async def receive(request: Request) -> Response:
    body = await request.body()
    try:
        id = webhooks.verify(request.headers, body, SECRETS)
        event = json.loads(body)
    except webhooks.VerificationError as error:
        logger.warning("refused: %s", error)
        return Response(status_code=401)
    except ValueError:
        return Response(status_code=400)
    # In a thread: a transaction that waits for another must not block the event loop.
    await run_in_threadpool(ledger.enter, id, event)
    return Response(status_code=204)  # also for a duplicate. An exception gives a 500, and the sender tries again


app = Starlette(routes=[Route("/events", receive, methods=["POST"])])
