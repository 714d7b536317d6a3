"""Texts that must not show up in errors, where a receiver may well repeat them."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
# Shorter ones are words as well, and hiding them would only make errors unreadable.
SHORTEST = 5


class Redaction:
    """What to hide, and hiding it. Shows nothing of itself."""

    __slots__ = ("_pattern",)

    def __init__(self, texts: Iterable[str]) -> None:
        # The longest first, or a part of one would be hidden and the rest shown.
        found = sorted({text for text in texts if len(text) >= SHORTEST}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None

    def redact(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)
