"""The handlers of the same application: `outbox worker tests.rabbitmq.handlers`."""

import tests.apps.ledger
import tests.rabbitmq.shop  # noqa: F401  (sets the broker)
