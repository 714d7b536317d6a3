"""Encode JSON with a private part of the standard library: for speed.

`json.JSONEncoder.encode` makes a new C encoder for every value, which takes as long as encoding a usual payload. This
module makes the C encoder once, with the private function `json.encoder.c_make_encoder`. If Python lacks that function,
or it takes other parameters, the standard encoder is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable


def fast_encode(standard: json.JSONEncoder) -> Callable[[object], str]:
    """Return a function that encodes as `standard.encode` does.

    `standard` must have allow_nan=False, ensure_ascii=False and separators without spaces. The C encoder does not check
    whether a value contains itself; such a value raises RecursionError. Then the standard encoder is called, which
    raises an error that says why.
    """
    make = getattr(json.encoder, "c_make_encoder", None)
    try:
        encoder = make(None, standard.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)  # type: ignore[misc]
    except TypeError:
        return standard.encode

    def encode(value: object) -> str:
        try:
            return "".join(encoder(value, 0))
        except RecursionError:
            return standard.encode(value)

    return encode
