"""What is not shown: the values of keys that sound like secrets, at any depth of a payload or of headers."""

from __future__ import annotations

import re
from typing import Any

MASKED = "•••"
# Deeper than anybody nests by intention: what is below is not shown, rather than looked through.
DEEPEST = 100


class Masking:
    """Made from `OUTBOX_MASKED_KEYS`: a key is masked if it contains one of the words.

    Case and punctuation don't count: `api_key` is found in `apiKey`, `X-API-Key` and `stripe_api_key_live`.
    """

    def __init__(self, words: str) -> None:
        self._words = tuple(filter(None, map(_bare, words.split(","))))

    def hides(self, key: str) -> bool:
        bare = _bare(key)
        return any(word in bare for word in self._words)

    def masked(self, value: Any, depth: int = 0) -> Any:
        """The same, with what is behind such keys replaced."""
        if depth > DEEPEST:
            return MASKED
        if isinstance(value, dict):
            return {
                key: MASKED if self.hides(str(key)) else self.masked(each, depth + 1) for key, each in value.items()
            }
        return [self.masked(each, depth + 1) for each in value] if isinstance(value, list) else value


def _bare(text: str) -> str:
    return re.sub(r"[\W_]", "", text.casefold())
