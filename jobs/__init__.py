"""Run outbox workers with Dramatiq's program: `dramatiq jobs your.module`, where `your.module` holds your handlers.

This is the only module of the library whose import has effects. It sets up Dramatiq's broker from the environment,
unless the application has set a broker already. When Dramatiq's worker starts, the process becomes an outbox worker. So
don't import this module anywhere else. If your application has a package named `jobs`, run `outbox worker your.module`
instead, which does the same.

If a process of Dramatiq's program imports this module, but its command line does not name it, the import only logs a
warning, because the application may have meant its own package `jobs`.
"""

from __future__ import annotations

from outbox.dramatiq import ActorDestination
from outbox.dramatiq.worker import errors_as_one_line, prepare_worker, should_become_worker

__all__ = ["ActorDestination"]

if should_become_worker(__name__):
    with errors_as_one_line():
        prepare_worker()
