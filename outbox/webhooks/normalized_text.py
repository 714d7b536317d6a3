"""Normalize texts, so that a value is found in whatever form a receiver has written it.

A receiver that repeats a value may write it in JSON, HTML, a URL or a Python literal, one inside another, in capitals
or on several lines. In the normalized form all these escapes are decoded, the case is folded, and white space, plus
signs, backslashes and invisible characters are left out.
"""

from __future__ import annotations

import html
import re
from itertools import pairwise
from typing import NamedTuple

# How many layers of escapes, one inside another, are decoded.
MOST_LAYERS = 5

# The escapes of a text whose case is folded already: so `\N` in a path is decoded as `\n`.
_ESCAPES = re.compile(
    r"(?:\\u[0-9a-f]{4})+"  # JSON; two of them may stand for one character
    r"|(?:\\x[0-9a-f]{2})+"  # Python
    r"|(?:%[0-9a-f]{2})+"  # a URL
    r"|\\[abfnrtv]"  # control characters, in JSON and Python
    r"|\\\\"
    r"|&(?:#[0-9]{1,7}|#x[0-9a-f]{1,6}|[a-z]{2,8});"  # HTML
)
_KEPT = re.compile(r"[^\s\\+\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+")


class NormalizedText(NamedTuple):
    """A normalized text, and for each of its characters the begin and the end of its origin in the original text."""

    text: str
    spans: list[tuple[int, int]]


def normalized(text: str) -> str:
    """Return the normalized form of a text."""
    text = text.casefold()
    for _ in range(MOST_LAYERS):
        plain = _ESCAPES.sub(lambda found: _meaning(found[0]), text)
        if plain == text:
            break
        text = plain
    return "".join(_KEPT.findall(text))


def normalized_with_spans(text: str) -> NormalizedText:
    """Return the normalized form of a text, and where its characters come from."""
    spans = list(pairwise(range(len(text) + 1)))
    if not text.isascii():  # some characters become several
        spans = [span for character, span in zip(text, spans, strict=True) for _ in character.casefold()]
    text = text.casefold()
    for _ in range(MOST_LAYERS):
        plain, plain_spans = _read_escapes(text, spans)
        if plain == text:
            break
        text, spans = plain, plain_spans
    parts: list[str] = []
    kept: list[tuple[int, int]] = []
    for found in _KEPT.finditer(text):
        parts.append(found[0])
        kept += spans[found.start() : found.end()]
    return NormalizedText("".join(parts), kept)


def _read_escapes(text: str, spans: list[tuple[int, int]]) -> tuple[str, list[tuple[int, int]]]:
    """Return the text with one layer of escapes decoded. A decoded character gets the span of its whole escape."""
    parts: list[str] = []
    found_spans: list[tuple[int, int]] = []
    at = 0
    for found in _ESCAPES.finditer(text):
        meaning = _meaning(found[0])
        parts += (text[at : found.start()], meaning)
        found_spans += spans[at : found.start()]
        found_spans += [(spans[found.start()][0], spans[found.end() - 1][1])] * len(meaning)
        at = found.end()
    return "".join((*parts, text[at:])), found_spans + spans[at:]


def _meaning(escape: str) -> str:
    """Return what an escape stands for; a blank for a control character, which is left out later."""
    if escape.startswith("&"):
        return html.unescape(escape).casefold()
    if escape.startswith("\\u"):
        return bytes.fromhex(escape.replace("\\u", "")).decode("utf-16-be", errors="replace").casefold()
    if escape.startswith(("\\x", "%")):
        encoded = bytes.fromhex(escape.replace("\\x", "").replace("%", ""))
        try:
            return encoded.decode().casefold()
        except UnicodeDecodeError:
            return encoded.decode("latin-1").casefold()
    return "\\" if escape == "\\\\" else " "
