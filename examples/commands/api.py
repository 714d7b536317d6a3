"""The HTTP API, with Flask: `python -m flask --app examples.commands.api run`.

curl -d '{"command_id": "c-1"}' -H 'content-type: application/json' localhost:5000/workflows/import
"""

from __future__ import annotations

from typing import Any

from flask import Flask, abort, request

import outbox
from examples.commands import workflows

workflows.create_tables()
app = Flask(__name__)


@app.post("/workflows/<name>")
def start_workflow(name: str) -> tuple[dict[str, Any], int]:
    try:
        workflow, first = workflows.start(request.get_json().get("command_id"), name)
    except outbox.InvalidMessage:
        abort(400, "command_id must be a text of up to 255 characters.")
    if workflow.name != name:
        abort(409, f"This command has already started {workflow.name!r}.")
    return {"workflow": workflow.id}, 201 if first else 200
