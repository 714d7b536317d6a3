"""Receivers of webhooks: an event that arrives twice is credited once.

    ledger.py            the receiver's own tables, and the function that applies an event to them
    with_flask.py        the receiver on Flask
    with_starlette.py    the same on Starlette, or FastAPI

    export OUTBOX_DATABASE_URL=sqlite:///ledger.db LEDGER_SECRET=whsec_…
    python -m flask --app examples.receivers.with_flask run
    uvicorn examples.receivers.with_starlette:app

The sender, in another service: `outbox.Webhook("ledger", "http://…/events", secret="whsec_…", events=["entry.*"])`.
"""
