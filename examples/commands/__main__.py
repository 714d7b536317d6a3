"""`python -m examples.commands`: one command, sent three times at once, on a temporary SQLite file."""

from __future__ import annotations

import http.client
import json
import os
import sys
import tempfile
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TIMES = 3


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="outbox-commands-") as folder:
        for name in [name for name in os.environ if name.startswith("OUTBOX_")]:
            del os.environ[name]
        os.environ.update(OUTBOX_DATABASE_URL=f"sqlite:///{Path(folder) / 'workflows.db'}", OUTBOX_DISPATCH="off")
        return _run()


def _run() -> int:
    # Imported here: the API opens the database that the environment names.
    from werkzeug.serving import make_server

    import outbox
    from examples.commands.api import app
    from examples.commands.workflows import Workflow

    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command_id = str(uuid.uuid4())
    with ThreadPoolExecutor(TIMES) as threads:
        for response in threads.map(lambda _: send(server.server_port, command_id), range(TIMES)):
            print(response)
    server.shutdown()
    started, events = Workflow.select().count(), outbox.OutboxEvent.select().count()
    print(f"{TIMES} commands, {started} workflow started, {events} event")
    return 0 if started == events == 1 else 1


def send(port: int, command_id: str) -> str:
    """Send the command, and return status and body of the response. A caller does this again if it gets no response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps({"command_id": command_id})
    connection.request("POST", "/workflows/import", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    return f"{response.status} {response.read().decode().strip()}"


if __name__ == "__main__":
    sys.exit(main())
