"""Replace secrets in texts that are shown or stored, such as errors.

A receiver may repeat a token or a URL in its response, and a driver may repeat a password in its error. The webhooks
redact the errors that they store with an event; the doctor redacts its findings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
# A shorter text is often an ordinary word. Redacting it everywhere would make errors unreadable.
SHORTEST = 5


class Redaction:
    """The secrets of one webhook or one configuration. Its repr does not show them."""

    __slots__ = ("_pattern",)

    def __init__(self, texts: Iterable[str]) -> None:
        # The longest first: if one text is part of another, the longer one must be replaced as a whole.
        secrets = sorted({text for text in texts if len(text) >= SHORTEST}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, secrets))) if secrets else None

    def redact(self, text: str) -> str:
        """Return the text with every secret in it replaced by `***`."""
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)
