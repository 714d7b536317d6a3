"""The same application with its handlers, for its outbox workers."""

import tests.apps.ledger
import tests.apps.tasks  # noqa: F401  (sets the broker)
