"""What the documentation site is made of: every page in its navigation, and links that are right there."""

import re
from pathlib import Path

import pytest

from website import pages
from website.navigation import HOME, PROJECT, SECTIONS, TOP
from website.pages import DOCS, ROOT, SOURCE


def test_the_navigation_holds_every_page_once() -> None:
    listed = [HOME, *TOP, *(page for pages in SECTIONS.values() for page in pages)]
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(written | set(PROJECT.values()))


def test_a_section_is_listed_before_its_pages_and_is_their_folder() -> None:
    for section, below in SECTIONS.items():
        assert section.endswith("/index.md")
        assert all(page.startswith(section.removesuffix("index.md")) for page in below)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_index_of_a_section_links_to_its_pages(section: str) -> None:
    index = DOCS / section
    assert {pages.site_path(path) for path in pages.linked_files(index)} >= set(SECTIONS[section])


def test_links_out_of_the_documentation_lead_to_pages_of_the_site() -> None:
    page = DOCS / "how-to" / "inbox.md"
    text = "[a](../../examples/commands/__init__.py) [b](../../CHANGELOG.md#added) [c](handlers.md) [d](https://e.org)"
    assert pages.rewrite_links(text, page, "how-to/inbox.md") == (
        "[a](../source/examples/commands/__init__.py.md) [b](../project/changelog.md#added) [c](handlers.md) "
        "[d](https://e.org)"
    )


def test_code_blocks_stay_as_they_are() -> None:
    text = "```md\n[a](../CHANGELOG.md)\n```\n[a](../CHANGELOG.md)\n"
    rewritten = pages.rewrite_links(text, DOCS / "index.md", "index.md")
    assert rewritten == "```md\n[a](../CHANGELOG.md)\n```\n[a](project/changelog.md)\n"


def test_every_file_that_a_page_links_to_is_in_the_site(tmp_path: Path) -> None:
    pages.prepare(tmp_path / "pages")
    for page in (tmp_path / "pages").rglob("*.md"):
        if not page.relative_to(tmp_path / "pages").as_posix().startswith(SOURCE):
            links = (match[0] for match in pages.LINK.finditer(pages.FENCED.sub("", page.read_text())))
            targets = [pages.resolve(page, link) for link in links]
            assert [target for target in targets if target is not None and not target.exists()] == []


def test_ci_runs_the_tests_and_builds_the_site() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^ *python3 dev\.py test( \|\||$)", script, re.MULTILINE)
    assert re.search(r"^ *python3 dev\.py docs( \|\||$)", script, re.MULTILINE)
