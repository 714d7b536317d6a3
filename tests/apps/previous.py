"""The library as it was before the latest version of its tables: it knows of none beyond the one before."""

from outbox import schema

setattr(schema, "VERSIONS", schema.VERSIONS[:-1])  # noqa: B010 - a name that is fixed to everybody else

import tests.apps.ledger  # noqa: E402, F401  - its handlers
