"""The labels of a counter, as objects and as the text that the tables of counts store.

The text is part of a primary key. So the same labels always give the same text.
"""

from __future__ import annotations

import json

from outbox.text import clean_label

Labels = tuple[tuple[str, str], ...]


def labels_as_text(labels: Labels) -> str:
    """Return the labels as a JSON object with sorted names, or "" if there are none."""
    if not labels:
        return ""
    return json.dumps({name: clean_label(value) for name, value in sorted(labels)}, separators=(",", ":"))


def labels_from_text(text: str) -> Labels:
    """Return the labels that a stored text stands for, sorted by name."""
    return tuple(sorted(json.loads(text).items())) if text else ()
