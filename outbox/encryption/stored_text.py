"""The format of an encrypted column: a JSON object that names the format, the key and the ciphertext.

    {"outbox_encrypted": "v1:1f0c9a4e:<base64 of nonce, ciphertext and tag>"}

The columns `payload` and `headers` hold JSON, so this is JSON as well. `emit` writes JSON without spaces, and this has
a space after the colon: no payload of an application can look like it. This module alone reads and writes the format.
"""

from __future__ import annotations

import binascii
import json
import re
from typing import NamedTuple

MARKER = "outbox_encrypted"
VERSION = "v1"
# How every encrypted text begins, and how those of this version begin.
START = f'{{"{MARKER}": "'
START_OF_VERSION = f"{START}{VERSION}:"
# The empty object is not encrypted: many events have no headers, and the length of a ciphertext would show it anyway.
EMPTY = "{}"

_TEXT = re.compile(re.escape(START) + r'(?P<version>v\d+):(?P<key_id>[0-9a-f]{8}):(?P<data>[A-Za-z0-9+/]*={0,2})"\}')


class Encrypted(NamedTuple):
    """The parts of an encrypted text."""

    version: str
    key_id: str
    data: bytes


def is_encrypted(text: str) -> bool:
    """Return whether the text of a column is encrypted, in this or in a later format."""
    return text.startswith(START)


def write(key_id: str, data: bytes) -> str:
    """Return the text of a column."""
    return f'{START_OF_VERSION}{key_id}:{binascii.b2a_base64(data, newline=False).decode()}"}}'


def read(text: str) -> Encrypted | None:
    """Return the parts of an encrypted text, or None if it is damaged."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    try:
        return Encrypted(match["version"], match["key_id"], binascii.a2b_base64(match["data"], strict_mode=True))
    except binascii.Error:
        return None


def key_id_of(text: str) -> str | None:
    """Return the id of the key with which a text was encrypted; None if it is not encrypted, or damaged."""
    match = _TEXT.fullmatch(text) if is_encrypted(text) else None
    return None if match is None else match["key_id"]


def text_of(value: object) -> str | None:
    """Return the text of a column that a driver has decoded, or None if the column is not encrypted."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get(MARKER), str):
        text = json.dumps(value)
        return text if _TEXT.fullmatch(text) else None
    return None
