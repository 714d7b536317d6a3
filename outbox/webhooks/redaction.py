"""Replace secrets in texts that are shown or stored, such as errors.

A receiver may repeat a token, a URL or the payload in its response, and a driver may repeat a password in its error.
The webhooks redact the errors that they store with an event; the doctor redacts its findings.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from outbox.webhooks.normalized_text import normalized, normalized_with_spans

HIDDEN = "***"
# A shorter text is often an ordinary word. Redacting it everywhere would make errors unreadable.
SHORTEST = 5
# A receiver may repeat only a part of a value. So any part of a value that is at least this long is redacted. A shorter
# value is redacted only as a whole.
SHORTEST_PART = 12
# A text that consists mostly of punctuation has a short normalized form. It is compared only if it is this long.
SHORTEST_NORMALIZED = 4

# JSON's escapes for characters that need no escape, such as `\/` for a slash. Other escapes are not decoded.
_JSON_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|([/"]))')


class Redaction:
    """The secrets of one webhook or one configuration. Its repr does not show them."""

    __slots__ = ("_pattern", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        # The longest first: if one text is part of another, the longer one must be replaced as a whole.
        self.texts = sorted({text for text in texts if len(text) >= SHORTEST}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_pattern_of, self.texts))) if self.texts else None

    def redact(self, text: str, most: int | None = None) -> str:
        """Return the text with every secret in it replaced by `***`, however its characters are escaped.

        With `most`, return only the first `most` characters of the text. A secret that begins in it is
        replaced whole, since half of it would not be recognised.
        """
        parts: list[str] = []
        end, at = len(text) if most is None else most, 0
        for match in () if self._pattern is None else self._pattern.finditer(text):
            if match.start() >= end:
                break
            parts += (text[at : match.start()], HIDDEN)
            at = match.end()
        return "".join((*parts, text[at:end]))


def _pattern_of(secret: str) -> str:
    """Return a pattern that also matches the secret in JSON, HTML, a URL or a Python literal, with their escapes."""
    return "".join(map(_pattern_of_character, secret))


def _pattern_of_character(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    number = ord(character)
    escapes = {
        f"\\{character}",
        "".join(f"\\u{unit:04x}" for unit in _utf16_units(character)),
        quote(character, safe="", errors="replace"),
        html.escape(character),
        f"&#{number};",
        f"&#x{number:x};",
    }
    if character == " ":
        escapes.add("+")
    longest_first = sorted(escapes - {character}, key=len, reverse=True)
    return f"(?:{'|'.join(f'(?i:{re.escape(each)})' for each in longest_first)}|{re.escape(character)})"


def _utf16_units(character: str) -> Iterator[int]:
    encoded = character.encode("utf-16-be", errors="surrogatepass")
    return (int.from_bytes(encoded[start : start + 2]) for start in range(0, len(encoded), 2))


def without_json_escapes(text: str) -> str:
    r"""Return a text from a JSON document with `\/`, `\"` and `\uXXXX` as the characters that they stand for."""
    if "\\" not in text:
        return text
    plain = _JSON_ESCAPE.sub(lambda found: found[2] if found[1] is None else chr(int(found[1], 16)), text)
    # Two escapes may stand for the two halves of one character.
    return plain.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")


def hide_values(text: str, values: Iterable[str], *, is_cut: bool = False) -> str:
    """Return the text with each value, and each longer part of a value, replaced by `***`, in whatever form it is.

    The values are those of an event, so there may be many of them, and they differ with every call. If the text was
    cut, its end is left out: a value that begins there would not be recognised.
    """
    found = normalized_with_spans(text)
    hidden = bytearray(len(text))
    parts, shared = set(_parts(found.text)), set()
    for value in values:
        if len(value) < SHORTEST:
            continue
        plain = normalized(value)
        if len(plain) >= SHORTEST_PART:
            # The loop runs over the value, not over the text: so the time is proportional to the size of the payload.
            shared |= parts.intersection(_parts(plain))
        elif len(plain) >= SHORTEST_NORMALIZED:
            for position in _positions(found.text, plain):
                _hide(hidden, found.spans[position : position + len(plain)])
        else:
            for position in _positions(text, value):
                _hide(hidden, [(position, position + len(value))])
    for position, part in enumerate(_parts(found.text)) if shared else ():
        if part in shared:
            _hide(hidden, found.spans[position : position + SHORTEST_PART])
    edge = found.spans[1 - SHORTEST_PART :] if is_cut else []
    return "".join(_replaced(text, hidden[: edge[0][0]] if edge else hidden))


def _parts(text: str) -> Iterator[str]:
    """Yield each part of the text that is SHORTEST_PART characters long."""
    return (text[start : start + SHORTEST_PART] for start in range(len(text) - SHORTEST_PART + 1))


def _hide(hidden: bytearray, spans: list[tuple[int, int]]) -> None:
    start, end = spans[0][0], spans[-1][1]
    hidden[start:end] = b"x" * (end - start)


def _positions(text: str, part: str) -> Iterator[int]:
    start = text.find(part)
    while start >= 0:
        yield start
        start = text.find(part, start + 1)


def _replaced(text: str, hidden: bytearray) -> Iterator[str]:
    for match in re.finditer(rb"x+|\0+", hidden):
        yield HIDDEN if match[0].startswith(b"x") else text[match.start() : match.end()]


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts and numbers in a JSON value, without the names of its fields.

    A key that is no name is a value, too: an object may have the addresses of customers as its keys.
    """
    waiting = [value]
    while waiting:
        each = waiting.pop()
        match each:
            case dict():
                waiting += each.values()
                yield from (key for key in each if not key.replace("-", "_").isidentifier())
            case list():
                waiting += each
            case str():
                yield each
            case int() | float() if not isinstance(each, bool):
                yield str(each)
