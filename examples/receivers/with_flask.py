"""The receiver on Flask: `python -m flask --app examples.receivers.with_flask run`."""

from __future__ import annotations

import os

from flask import Flask, abort, request

from examples.receivers import ledger
from outbox import webhooks

SECRETS = os.environ["LEDGER_SECRET"].split()  # two of them while you rotate the secret

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
    ledger.enter(id, request.get_json(force=True))  # a body that is not JSON gives a 400
    return "", 204  # also for a duplicate. An exception gives a 500, and the sender tries again
