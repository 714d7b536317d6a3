"""Mask secrets in payloads, headers and arguments, by the names of their keys, before they are shown."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from outbox.webhooks.redaction import without_json_escapes

MASKED = "•••"
# Values that are nested deeper than this are masked without being searched.
DEEPEST = 100

# In an object such as {"name": "password", "value": "…"} or {"key": "X-API-Key", "value": "…"}, the first of these keys
# holds the name, and the others what belongs to it.
_NAME_KEYS = frozenset(("name", "key", "field", "header", "label", "param", "parameter", "property", "attribute"))
_VALUE_KEYS = frozenset(("value", "values", "val", "content", "data", "text", "default", "old", "new"))
# A text that begins like this may be JSON.
_JSON_STARTS = ("{", "[", '"')
# A name of JSON or Python in a text, up to its value. In JSON inside JSON, quotation marks have backslashes. The length
# is bounded: otherwise a text of many quotation marks would take time in proportion to its square.
_NAME_IN_TEXT = re.compile(r"""["']((?:[^"'\\]|\\u[0-9a-fA-F]{4}){1,100})\\*["']\s*:\s*""")
# The value behind it: a text, which may be cut off, or a number or a word. An object or a list is none of these.
_VALUE_IN_TEXT = re.compile(
    r"""(["'])(?:(?!\1)[^\\]|\\.)*+(?:\1|\\?\Z)"""
    r"""|(\\+)(["'])(?:(?!(?<!\\)\2\3).)*+(?:\2\3|\Z)"""
    r"""|[^\s,"'{}\[\]\\]+""",
    re.DOTALL,
)
# A pair of a name and a value, as in a list of headers.
_PAIR_LENGTH = 2


class Masking:
    """Masks the value of each key that contains one of the words in `OUTBOX_MASKED_KEYS`.

    Case and punctuation are ignored: `api_key` is found in `apiKey`, `X-API-Key` and `stripe_api_key_live`. The value
    of such a name is masked as well where name and value are two values: `{"name": "apiKey", "value": "…"}` and
    `["apiKey", "…"]`. JSON in a text is masked, too, also if it is only a part of the text, or was cut off.
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
        match value:
            case dict():
                return self._masked_object(value, depth)
            case [str() as name, _] if len(value) == _PAIR_LENGTH and self.hides(name):
                return [name, MASKED]
            case list():
                return [self.masked(each, depth + 1) for each in value]
            case str() if ":" in value or value.lstrip().startswith(_JSON_STARTS):
                return self._masked_text(value, depth)
        return value

    def _masked_object(self, value: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        names_a_secret = any(
            isinstance(each, str) and _bare(str(key)) in _NAME_KEYS and self.hides(each) for key, each in value.items()
        )
        return {
            key: MASKED
            if self.hides(str(key)) or (names_a_secret and _bare(str(key)) in _VALUE_KEYS)
            else self.masked(each, depth + 1)
            for key, each in value.items()
        }

    def _masked_text(self, text: str, depth: int) -> str:
        """Return a text with the JSON in it masked. A text in which nothing is masked stays as it is."""
        try:
            value = json.loads(text, object_pairs_hook=_object) if text.lstrip().startswith(_JSON_STARTS) else text
        except (ValueError, RecursionError):
            value = text
        if value is text:
            return self._masked_parts(text)
        masked = self.masked(value, depth + 1)
        return text if masked == value else json.dumps(masked, ensure_ascii=False)

    def _masked_parts(self, text: str) -> str:
        """Return a text that is not JSON as a whole, but may contain some: lines of it, or a part that was cut off."""
        parts: list[str] = []
        at = 0
        while (name := _NAME_IN_TEXT.search(text, at)) is not None:
            parts.append(text[at : name.end()])
            at = name.end()
            if self.hides(without_json_escapes(name[1])):
                value = _VALUE_IN_TEXT.match(text, at)
                parts.append(MASKED)
                # In a text that may be cut off, the end of an object or a list can't be found: the rest is not shown.
                at = len(text) if value is None else value.end()
        return "".join((*parts, text[at:]))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise ValueError if it has a name twice, because a dict would hide one of the values."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a name twice")
    return value


def _bare(text: str) -> str:
    """Return the text in lower case, without punctuation."""
    return re.sub(r"[\W_]", "", text.casefold())
