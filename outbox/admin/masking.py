"""Mask secrets in payloads and headers, by the names of their keys, before the dashboard shows them."""

from __future__ import annotations

import re
from typing import Any

MASKED = "•••"
# Values that are nested deeper than this are masked without being searched.
DEEPEST = 100


class Masking:
    """Masks the value of each key that contains one of the words in `OUTBOX_MASKED_KEYS`.

    Case and punctuation are ignored: `api_key` is found in `apiKey`, `X-API-Key` and `stripe_api_key_live`.
    """

    def __init__(self, words: str) -> None:
        self._words = tuple(filter(None, map(_bare, words.split(","))))

    def hides(self, key: str) -> bool:
        """Return whether the value of this key is masked."""
        bare = _bare(key)
        return any(word in bare for word in self._words)

    def masked(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of a JSON value in which the values of these keys are masked, at any depth."""
        if depth > DEEPEST:
            return MASKED
        if isinstance(value, dict):
            return {
                key: MASKED if self.hides(str(key)) else self.masked(each, depth + 1) for key, each in value.items()
            }
        return [self.masked(each, depth + 1) for each in value] if isinstance(value, list) else value


def _bare(text: str) -> str:
    """Return the text in lower case, without punctuation."""
    return re.sub(r"[\W_]", "", text.casefold())
