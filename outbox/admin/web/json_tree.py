"""Show JSON so that its objects and lists can be folded, without a script: each is a <details> element."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from markupsafe import Markup

from outbox.text import visible_json

# JSON with more values than this, or nested more deeply, is not shown as a tree: the browser would be slow.
MOST_VALUES = 2_000
DEEPEST = 40

_FOLD = Markup(
    '<details open class="fold" id="{id}"><summary>{name}{begin}<span class="folded"> {what} {end}</span></summary>'
    '<div class="inside">{inside}</div><div>{end}{comma}</div></details>'
)
_LEAF = Markup("<div>{name}{value}{comma}</div>")


def json_tree(value: Any, id: str) -> Markup | None:
    """Return the value as HTML. Return None if there is nothing to fold in it, or too much.

    `id` begins the ids of the elements, by which the page's script keeps them folded when it refreshes the page.
    """
    if not _is_nested(value) or not _fits(value):
        return None
    numbers = count()
    return _shown(value, Markup(""), Markup(""), lambda: f"{id}-{next(numbers)}")


def _is_nested(value: Any) -> bool:
    return any(isinstance(each, dict | list) and each for each in _children(value))


def _children(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _fits(value: Any) -> bool:
    level, number = [value], 0
    for _ in range(DEEPEST):
        number += len(level)
        if not level or number > MOST_VALUES:
            break
        level = [child for each in level for child in _children(each)]
    return not level


def _shown(value: Any, name: Markup, comma: Markup, next_id: Callable[[], str]) -> Markup:
    if not isinstance(value, dict | list) or not value:
        return _LEAF.format(name=name, value=_text(value), comma=comma)
    pairs = [(Markup(""), each) for each in value] if isinstance(value, list) else list(_named(value))
    own_id = next_id()
    last = len(pairs) - 1
    inside = Markup("").join(
        _shown(each, key, Markup("") if number == last else Markup(","), next_id)
        for number, (key, each) in enumerate(pairs)
    )
    begin, end, noun = ("[", "]", "item") if isinstance(value, list) else ("{", "}", "key")
    what = f"{len(pairs):,} {noun}{'' if len(pairs) == 1 else 's'}"
    return _FOLD.format(id=own_id, name=name, begin=begin, end=end, what=what, inside=inside, comma=comma)


def _named(value: dict[str, Any]) -> Iterator[tuple[Markup, Any]]:
    for key, each in value.items():
        yield Markup('<span class="name">{}</span>: ').format(_text(key)), each


def _text(value: Any) -> str:
    return visible_json(json.dumps(value, ensure_ascii=False))
