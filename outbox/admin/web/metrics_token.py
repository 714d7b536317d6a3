"""Let Prometheus read `/metrics` with a token of its own (OUTBOX_METRICS_TOKEN), and nothing else."""

from __future__ import annotations

import logging
from hmac import compare_digest

from starlette.requests import HTTPConnection

from outbox.admin.web.password_attempts import PasswordAttempts, address_of
from outbox.admin.web.passwords import check_secret_length

logger = logging.getLogger(__name__)

# The user name of a request with this token. It may see the metrics only, so no page shows the name.
USER = "metrics"
PATH = "/metrics"


class MetricsToken:
    """Accepts requests for the metrics with `Authorization: Bearer <token>`."""

    def __init__(self, token: str | None) -> None:
        if token is not None:
            check_secret_length(token, "OUTBOX_METRICS_TOKEN")
        self._expected = token
        self._attempts = PasswordAttempts()

    def accepts(self, connection: HTTPConnection) -> bool:
        """Return whether this is a request for the metrics with the token."""
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        path = connection.scope["path"].removeprefix(connection.scope.get("root_path", ""))
        if self._expected is None or path != PATH or scheme.lower() != "bearer":
            return False
        address = address_of(connection)
        if self._attempts.wait_seconds(address) > 0:
            return False
        if compare_digest(given.strip().encode(errors="replace"), self._expected.encode()):
            return True
        number = self._attempts.count_wrong(address)
        logger.warning("The dashboard refused a token for the metrics from %s: %d in a row.", address, number)
        return False
