"""The actions of operators on periodic jobs: run one now, pause it, resume it, forget it. The audit log records each.

They need only the database, not the application's modules: a scheduler that has the job does the rest within a second
or two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from outbox.errors import RegistrationError
from outbox.storage.dialect import Dialect
from outbox.storage.operator_models import Periodic
from outbox.telemetry import audit
from outbox.telemetry.audit import Operator
from outbox.text import is_storable

# A scheduler records every 20 s that it has a job. After this time, none has it.
ABSENT_AFTER = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class PeriodicAction:
    """One thing that an operator can do to a periodic job."""

    # In commands, in forms and in the audit log.
    name: str
    # On buttons.
    label: str
    # What was done, and why nothing was done, as the rest of a sentence that begins with the job's name.
    done: str
    not_done: str
    statement: Callable[[Dialect], str]
    # Whether the job is removed.
    is_dangerous: bool = False


RUN_NOW = PeriodicAction(
    "run",
    "Run now",
    "will run as soon as a scheduler that has it looks, within a second or two; its schedule is not changed.",
    "is about to run already: an operator has asked for a run that no scheduler has stored yet.",
    lambda dialect: dialect.statements.periodic_request,
)
PAUSE = PeriodicAction(
    "pause",
    "Pause",
    "is paused: no runs are stored until it is resumed. Runs that are stored already are not affected.",
    "is paused already.",
    lambda dialect: dialect.statements.periodic_pause,
)
RESUME = PeriodicAction(
    "resume",
    "Resume",
    "is resumed: its next run is at its next scheduled time. The times of the pause are not run.",
    "is not paused.",
    lambda dialect: dialect.statements.periodic_resume,
)
FORGET = PeriodicAction(
    "forget",
    "Forget",
    "is forgotten. If it is declared again, it is a new job.",
    "is forgotten already.",
    lambda dialect: dialect.statements.periodic_forget,
    is_dangerous=True,
)
PERIODIC_ACTIONS = {action.name: action for action in (RUN_NOW, PAUSE, RESUME, FORGET)}


def apply(dialect: Dialect, action: PeriodicAction, name: str, *, operator: Operator) -> str:
    """Apply the action to a job, and write it to the audit log; return what was done, as a sentence.

    Raise RegistrationError if there is no such job, or if a job is to be forgotten that a scheduler still has.
    """
    with dialect.lock_limit(), dialect.atomic():
        found = _find(dialect, name)
        if not found:
            raise RegistrationError(f"There is no periodic job called {name!r}. {_known(dialect)}")
        if action is FORGET and dialect.now() - found[0].seen_at < ABSENT_AFTER:
            raise RegistrationError(
                f"A running scheduler has the periodic job {name!r}. Remove it from the code and restart the "
                "scheduler first, or pause it."
            )
        changed = dialect.run(action.statement(dialect), (name,)).rowcount == 1
        if changed:
            audit.note(dialect, operator, f"{action.name} periodic", {"periodic": name})
    return f"{name} {action.done if changed else action.not_done}"


def _find(dialect: Dialect, name: str) -> list[Periodic]:
    """Return the job of this name, if there is one. A name that can't be stored would be an error of the database."""
    return dialect.select(Periodic.select().where(Periodic.name == name)) if is_storable(name) else []


def _known(dialect: Dialect) -> str:
    names = [job.name for job in dialect.select(Periodic.select(Periodic.name).order_by(Periodic.name))]
    return f"There are: {', '.join(names)}." if names else "No scheduler has declared any yet."
