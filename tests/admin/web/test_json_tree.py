"""JSON is shown with what can be folded, and all of it is text."""

import re
from typing import Any

import pytest

from outbox.admin.web.json_tree import DEEPEST, MOST_VALUES, json_tree
from tests.admin.web.browser import Browser, Document
from tests.support.table import emit_one


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


def test_objects_and_lists_can_be_folded_and_are_open_at_first(browser: Browser) -> None:
    event = emit_one(payload={"lines": [{"sku": "a"}, {"sku": "b"}], "none": [], "total": 42.5})
    page = browser.get(f"/events/{event.id}")
    folds = [attributes for tag, attributes in page.tags if tag == "details" and attributes.get("class") == "fold"]
    assert len(folds) == 4
    assert all("open" in attributes for attributes in folds)
    assert len({attributes["id"] for attributes in folds}) == 4
    assert (
        '"lines" : [ 2 items ] { 1 key } "sku" : "a" }, { 1 key } "sku" : "b" } ], "none" : [], "total" : 42.5 }'
        in page.text
    )
    # And the same as text, to be copied.
    (copied,) = [
        attributes["data-copies"]
        for tag, attributes in page.tags
        if "payload-json" in attributes.get("data-copies", "")
    ]
    assert copied in [attributes.get("id") for _, attributes in page.tags]


def test_what_has_nothing_to_fold_is_a_text(browser: Browser) -> None:
    page = browser.get(f"/events/{emit_one(payload={'total': 1, 'none': {}}).id}")
    assert "fold" not in [attributes.get("class") for _, attributes in page.tags]
    assert '"total": 1' in page.text


@pytest.mark.parametrize(
    ("value", "is_shown"),
    [
        (nested(DEEPEST - 2), True),
        (nested(DEEPEST), False),
        ([[1] * (MOST_VALUES - 2)], True),
        ([[1] * (MOST_VALUES - 1)], False),
        ("text", False),
        ([], False),
        (None, False),
    ],
    ids=["deep", "too deep", "large", "too large", "text", "empty", "null"],
)
def test_large_and_deep_json_is_left_to_the_text(value: Any, is_shown: bool) -> None:
    assert (json_tree(value, "x") is not None) == is_shown


def test_names_and_values_are_escaped() -> None:
    attack = "</div><script>boom()</script>"
    tree = json_tree({attack: [attack, "\u202e"]}, "x")
    assert tree is not None
    page = Document(str(tree))
    assert {tag for tag, _ in page.tags} == {"details", "summary", "span", "div"}
    assert re.sub(r"\s", "", attack) in re.sub(r"\s", "", page.text)
    assert "\\u202e" in page.text
