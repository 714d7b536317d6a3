"""Encode JSON with a private part of the standard library: for speed.

`json.JSONEncoder.encode` makes a new C encoder for every value, which takes as long as the encoding of a usual payload.
This module makes the C encoder once. It uses the private name `json.encoder.c_make_encoder`. On a Python that lacks it,
or has it with other parameters, the standard encoder is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable


def fast_encode(standard: json.JSONEncoder) -> Callable[[object], str]:
    """Return a function that encodes as `standard.encode` does; `standard` has no NaN, no ASCII escapes, no spaces.

    The C encoder is made without the memory by which the standard one detects a value that contains itself. Such a
    value ends in a RecursionError; then the standard encoder is called, which raises the error that says why.
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
