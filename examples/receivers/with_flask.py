"""The receiver on Flask: `python -m flask --app examples.receivers.with_flask run`."""

from __future__ import annotations

import os

from flask import Flask, abort, request

from examples.receivers import ledger
from outbox import webhooks

SECRETS = os.environ["LEDGER_SECRET"].split()  # several, while one replaces another

ledger.open_ledger()
app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 1_000_000


@app.post("/events")
def receive() -> tuple[str, int]:
    try:
        id = webhooks.verify(request.headers, request.get_data(), SECRETS)
    except webhooks.VerificationError as error:
        app.logger.warning("refused: %s", error)
        abort(401)
    ledger.enter(id, request.get_json(force=True))  # what is no JSON is answered 400
    return "", 204  # to a duplicate, too; an exception is a 500, and it comes again
