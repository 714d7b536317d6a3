"""Become an outbox worker: a process that was started to deliver events.

`dramatiq jobs your.module` imports `jobs`, which calls `prepare_worker`, and then your modules. `outbox worker
your.module` has Dramatiq's own program call `boot`, which imports your modules first. Either way the process becomes a
worker when Dramatiq's worker starts: by then every module is imported and has called `outbox.configure` if it wants to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial

import dramatiq
import dramatiq.broker

from outbox.application_modules import import_modules
from outbox.current_outbox import current, loaded_settings
from outbox.dramatiq.actors import declare_actors
from outbox.dramatiq.broker import add_once, apply_changed_settings, find_broker, set_outbox_queue, set_up_broker
from outbox.dramatiq.dramatiq_program import under_dramatiq_cli
from outbox.dramatiq.middleware import Lifecycle
from outbox.dramatiq.readiness import check_ready
from outbox.errors import OutboxError

logger = logging.getLogger(__name__)

# How `outbox worker` names the modules to the processes that Dramatiq starts, forked or spawned.
MODULES_VARIABLE = "_OUTBOX_WORKER_MODULES"


def is_meant(module: str) -> bool:
    """Return whether importing `module` shall make this process a worker; log a warning if not.

    An application may have a package of the same name, and import this library's by mistake.
    """
    if not under_dramatiq_cli() or module in sys.argv[1:]:
        return True
    logger.warning(
        "This process imports the package `%s` of dramatiq-outbox, but was not started with it (`dramatiq %s "
        "your.module`): it does not become an outbox worker. If it means a package of its own of that name, that one "
        "is hidden by dramatiq-outbox's: run it from the folder that holds yours, or give yours another name.",
        module,
        module,
    )
    return False


def boot() -> None:
    """Prepare a process of `outbox worker`: Dramatiq calls this in each, instead of importing a module."""
    with errors_as_one_line():
        modules = shlex.split(os.environ.get(MODULES_VARIABLE, ""))
        load_application(modules)
        prepare_worker(modules)


def load_application(modules: Sequence[str], *, embedded: bool = False) -> dramatiq.Broker:
    """Import the application's modules, and return the broker that carries the wake-ups.

    A module may set a broker, and may call `configure`. One that declares actors without having set a broker gets the
    one from the environment instead of Dramatiq's on localhost: on Redis, or, if `embedded`, inside the process.
    """
    provisional: dramatiq.Broker | None = None
    if dramatiq.broker.global_broker is None and (embedded or loaded_settings().redis_url is not None):
        provisional = set_up_broker()
    import_modules(modules)
    settings = loaded_settings()
    if provisional is not None and dramatiq.broker.global_broker is provisional:
        apply_changed_settings(provisional, settings)
    return find_broker(settings)


def prepare_worker(modules: Sequence[str] = ()) -> dramatiq.Broker:
    """Have this process become an outbox worker when a Dramatiq worker starts in it; return the worker's broker."""
    broker = set_up_broker()
    add_once(broker, Lifecycle(partial(start_worker, modules=modules)))
    return broker


def start_worker(broker: dramatiq.Broker, modules: Sequence[str] = ()) -> None:
    """Check that all is in place, declare the actors, and become a worker."""
    box = current()
    box.stopping.clear()
    set_outbox_queue(broker, box.settings)
    check_ready(box, broker)
    box.become_worker(modules)
    declare_actors(broker, box.settings)


@contextlib.contextmanager
def errors_as_one_line() -> Iterator[None]:
    """End the process with one clear line where Dramatiq's program would print a traceback, or swallow the error."""
    try:
        yield
    except OutboxError as error:
        if under_dramatiq_cli():
            raise SystemExit(f"outbox: {error}") from None
        raise
