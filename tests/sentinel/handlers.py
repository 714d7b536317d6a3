"""The handlers of the same application: `outbox worker tests.sentinel.handlers`."""

import tests.apps.ledger
import tests.sentinel.shop  # noqa: F401  (sets the broker)
