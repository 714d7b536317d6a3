"""Clean text that is stored or shown.

PostgreSQL stores no NUL character, and UTF-8 can't encode a lone surrogate: a statement with either of them fails.
Error messages, names and labels come from handlers, receivers and users, so they may contain anything. Text that the
caller of `emit` passes is refused with an error (`events/validate.py`). Text that arrives while events are delivered is
cleaned instead: an error message must be stored, whatever it contains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# Long enough for a traceback's last lines; the error is stored in the event's row, once per destination.
ERROR_LENGTH = 2_000
LABEL_LENGTH = 200


def is_storable(text: str) -> bool:
    """Return whether the text contains neither NUL nor a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text


def clean_error(error: str) -> str:
    """Return an error message that every database can store, of at most ERROR_LENGTH characters."""
    if error.isascii() and "\x00" not in error:  # the usual case
        return shorten(error, ERROR_LENGTH)
    return shorten(error.replace("\x00", REPLACEMENT).encode(errors="replace").decode(), ERROR_LENGTH)


def clean_json(value: object) -> Any:
    """Return the value as JSON that every database can store; a text in it is cleaned as an error message is.

    NaN and infinities become null. A value without a JSON form becomes its text. Otherwise a single one of them would
    make the database refuse the whole document.
    """
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {clean_error(str(name)): clean_json(each) for name, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [clean_json(each) for each in value]
    return clean_error(str(value))


def clean_label(text: str) -> str:
    """Return a metric's label that every database can store.

    It differs from `clean_error` because a label is part of a primary key, which has a limited size: as JSON, with its
    escapes, a label has at most 2 * LABEL_LENGTH characters. NUL is dropped, not replaced, because
    existing rows were written like that, and another text would start a new series.
    """
    text = text.replace("\0", "").encode(errors="replace").decode()[:LABEL_LENGTH]
    while len(json.dumps(text)) > 2 * LABEL_LENGTH:
        text = text[:-1]
    return text


def shorten(text: str, most: int) -> str:
    """Return the text, cut to `most` characters; the last of a text that was cut is "…"."""
    return text if len(text) <= most else text[: most - 1] + "…"


def one_line(text: str) -> str:
    """Return the text with every run of white space as one space: libpq's error messages have several lines."""
    return " ".join(text.split())


def visible(text: str) -> str:
    """Return the text with an escape for each character that is not printable: a line break becomes `\\n`, ESC `\\x1b`.

    Such characters come with names and errors. In a log or a terminal they forge lines, move the cursor or change
    colours; those that set the writing direction let a text look like another one, on a page as well.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def visible_lines(text: str) -> str:
    """Return the text as `visible` does, but with its line breaks."""
    return "\n".join(map(visible, text.split("\n")))


def visible_json(text: str) -> str:
    """Return a JSON text that means the same, with JSON's escapes for the characters that are not printable.

    The encoder escapes only some of them. Line breaks stay: in JSON they can only be white space between the values.
    """
    return "".join(each if each.isprintable() or each == "\n" else _json_escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _json_escaped(character: str) -> str:
    units = character.encode("utf-16-be", errors="surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def printable(text: str, replacement: str = REPLACEMENT) -> str:
    """Return the text without control characters: in a log or a terminal they could forge or hide lines."""
    return "".join(each if each.isprintable() else replacement for each in text)
