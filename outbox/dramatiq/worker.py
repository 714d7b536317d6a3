"""Become an outbox worker: a process that was started to deliver events.

`dramatiq jobs your.module` imports `jobs`, which calls `prepare_worker`, and then imports your modules. `outbox worker
your.module` runs Dramatiq's program, which calls `boot`: it imports your modules, and then calls `prepare_worker`. In
both cases the process becomes an outbox worker when Dramatiq's worker starts. By then all modules are imported, and
one of them may have called `outbox.configure`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import dramatiq
import dramatiq.broker

from outbox.application_modules import import_modules
from outbox.core import Outbox
from outbox.current_outbox import current, loaded_settings, outboxes
from outbox.dramatiq import known_brokers
from outbox.dramatiq.actor_names import is_outbox_actor
from outbox.dramatiq.actors import declare_actors
from outbox.dramatiq.broker import add_once, apply_changed_settings, find_broker, set_outbox_queue, set_up_broker
from outbox.dramatiq.dramatiq_program import under_dramatiq_cli
from outbox.dramatiq.middleware import Lifecycle
from outbox.dramatiq.readiness import check_ready
from outbox.errors import OutboxError

logger = logging.getLogger(__name__)

# `outbox worker` passes the names of the modules to Dramatiq's processes in this environment variable.
MODULES_VARIABLE = "_OUTBOX_WORKER_MODULES"
# So many outboxes of a process are checked at the same time when it starts.
MOST_AT_ONCE = 20


def should_become_worker(module: str) -> bool:
    """Return whether importing `module` (`jobs`) should make this process a worker; log a warning if not.

    It should not in a process of Dramatiq's program whose command line does not name the module. Such an application
    may have a package of the same name, and import this library's package by mistake.
    """
    if not under_dramatiq_cli() or module in sys.argv[1:]:
        return True
    logger.warning(
        "This process imports the package `%s` of dramatiq-outbox, but was not started with it (`dramatiq %s "
        "your.module`), so it does not become an outbox worker. If you meant a package of your own with this name, the "
        "package of dramatiq-outbox hides it: start the process in the folder that contains your package, or rename "
        "your package.",
        module,
        module,
    )
    return False


def boot() -> None:
    """Prepare a worker process of `outbox worker`. Dramatiq's program calls this in each process that it starts."""
    with errors_as_one_line():
        modules = shlex.split(os.environ.get(MODULES_VARIABLE, ""))
        load_application(modules)
        prepare_worker(modules)


def load_application(modules: Sequence[str], *, embedded: bool = False) -> dramatiq.Broker:
    """Import the application's modules, and return the broker for the outbox's messages.

    A module may set a broker, and may call `outbox.configure`. If a module declares actors and none has set a broker,
    its actors get a broker from the environment, not Dramatiq's default on localhost: the Redis of OUTBOX_REDIS_URL,
    or, without that URL and if `embedded`, an in-process broker.
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
    """Make this process an outbox worker as soon as a Dramatiq worker starts in it; return that worker's broker."""
    broker = set_up_broker()
    add_once(broker, Lifecycle(partial(start_worker, modules=modules)))
    return broker


def start_worker(broker: dramatiq.Broker, modules: Sequence[str] = ()) -> None:
    """Check the broker and the tables, make this process an outbox worker, and declare the actors: for all outboxes."""
    set_outbox_queue(broker, current().settings)

    def prepare(box: Outbox) -> None:
        box.stopping.clear()
        check_ready(box, broker)
        box.become_worker(modules, has_jobs=may_have_jobs(broker))

    boxes = outboxes()
    if len(boxes) == 1:
        prepare(boxes[0])
    else:  # at the same time: a database host that does not respond must not hold up the others
        with ThreadPoolExecutor(min(len(boxes), MOST_AT_ONCE), "outbox-start") as threads:
            list(threads.map(prepare, boxes))
    for box in boxes:
        declare_actors(broker, box.settings, box.name)


def may_have_jobs(broker: dramatiq.Broker | None) -> bool:
    """Return whether there may be jobs that this process can enqueue.

    That is the case if the application has declared actors on this broker, or has made a broker transactional: a
    message can be enqueued without its actor.
    """
    has_actors = broker is not None and not all(map(is_outbox_actor, broker.actors))
    return has_actors or known_brokers.are_named()


@contextlib.contextmanager
def errors_as_one_line() -> Iterator[None]:
    """In a process of Dramatiq's program, print an OutboxError in one line, and end the process.

    Dramatiq's program would print a traceback, or ignore the error. In other processes the error is raised as it is.
    """
    try:
        yield
    except OutboxError as error:
        if under_dramatiq_cli():
            raise SystemExit(f"outbox: {error}") from None
        raise
