"""Retire the names of destinations that the deployment no longer has.

Events stop waiting for a retired name: open deliveries to it end without being made, and don't count as failed. A name
is retired by an operator (`outbox retire`), by a declaration in code (`outbox.retire`), by its successor (`replaces=`),
or by the clean-up if no worker has had it for OUTBOX_MAX_AGE_HOURS. Its row stays in the table, marked as retired.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from outbox.destinations.recorded_destinations import RecordedDestination, change_recorded
from outbox.errors import RegistrationError
from outbox.settings import Settings
from outbox.storage.dialect import Dialect
from outbox.storage.waiting_events import forget_destination
from outbox.telemetry import audit
from outbox.telemetry.audit import Operator

logger = logging.getLogger(__name__)

# At least this many clean-ups must find a name absent before it is retired.
LEAST_CHECKS = 10
# The values of the column `retired_by`, and of the audit log, if no operator retired the name.
BY_SUCCESSOR, BY_DECLARATION, BY_AGE = RETIRED_BY_SYSTEM = ("its successor", "a declaration", "OUTBOX_MAX_AGE_HOURS")
# The action's name in the audit log.
RETIRE = "retire"


def retire(dialect: Dialect, name: str, *, retired_by: Operator, force: bool = False) -> None:
    """Retire a name on behalf of an operator.

    Without `force`, raise RegistrationError if a running worker has the name, because events would stop reaching that
    worker, or if the name was never recorded, because it is probably mistyped. In any case, raise RegistrationError if
    the name is retired already.
    """
    statements = dialect.statements
    with change_recorded(dialect) as by_name:
        found = by_name.get(name)
        if found is None:
            if not force:
                raise RegistrationError(
                    f"No destination called {name!r} is recorded. {describe_recorded(by_name)} If events from before "
                    "wait for it, retire it with --force."
                )
            dialect.run(statements.destination_retire_unrecorded, (name, retired_by.name, None))
        elif found.retired:
            raise RegistrationError(f"The destination {name!r} is retired already.")
        elif found.alive and not force:
            raise RegistrationError(
                f"A running worker has the destination {name!r}. Stop or redeploy the workers that have it first: they "
                "count as running for a minute after a clean stop, and for three after a crash. Or use --force: events "
                "then stop reaching it at once."
            )
        mark_retired(dialect, name, None, retired_by, force=force)
        dialect.run(statements.destinations_changed)


def retire_absent(dialect: Dialect, settings: Settings) -> list[str]:
    """Retire the names that no worker has had for OUTBOX_MAX_AGE_HOURS; return them.

    Only time during which a worker ran counts, so that no name is retired because all workers were stopped for long.
    The clean-up calls this.
    """
    statements = dialect.statements
    limit = settings.max_age_hours * 3600
    # The most that a name's time of absence may grow in one clean-up. If clean-ups are rare, the time between two of
    # them must not be enough to retire a name whose worker starts late.
    most_seconds = min(2 * settings.cleanup_minutes * 60, limit / LEAST_CHECKS)
    with change_recorded(dialect):
        dialect.run(statements.destination_absent, (most_seconds,))
        names = [str(name) for (name,) in dialect.run(statements.destinations_expired, (limit,)).fetchall()]
        for name in names:
            mark_retired(dialect, name, None, Operator(BY_AGE))
        if names:
            dialect.run(statements.destinations_changed)
    return names


def mark_retired(
    dialect: Dialect, name: str, successor: str | None, retired_by: Operator, *, force: bool = False
) -> None:
    """Mark a recorded name as retired, in the caller's transaction, and write an entry to the audit log."""
    dialect.run(dialect.statements.destination_retire, (retired_by.name, successor, name))
    forget_destination(dialect, name)
    details = {"destination": name, "replaced_by": successor} | ({"force": True} if force else {})
    audit.note(dialect, retired_by, RETIRE, details)
    if successor is None:
        logger.warning(
            "The destination %s was retired by %s: open deliveries to it end without being made.", name, retired_by.name
        )
    else:
        logger.warning("The destination %s was replaced by %s, which takes over its open deliveries.", name, successor)


def describe_recorded(by_name: Mapping[str, RecordedDestination]) -> str:
    """Return a sentence that names the recorded destinations, for the error about a name that is not one of them."""
    names = sorted(name for name, each in by_name.items() if not each.retired)
    return f"Recorded are: {', '.join(names)}." if names else "No worker has recorded any destination yet."
