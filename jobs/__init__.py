"""Outbox workers, as a Procfile names them: `dramatiq jobs your.module`, where `your.module` holds your handlers.

The one module whose import has effects: it sets up Dramatiq's broker from the environment, unless the application has
set one already, and makes the process an outbox worker, with its actors, when Dramatiq's worker starts. So import it
nowhere else; `outbox worker your.module` does the same for an application that has a package of this name. A Dramatiq
process that was not told to load it, and imports it all the same, may mean a package of its own: it stays as it is.
"""

from __future__ import annotations

from outbox.dramatiq import ActorDestination
from outbox.dramatiq.worker import errors_as_one_line, is_meant, prepare_worker

__all__ = ["ActorDestination"]

if is_meant(__name__):
    with errors_as_one_line():
        prepare_worker()
