"""Prepare the pages for Sphinx: copy docs/ into a folder, with what the site needs beside it.

The pages are read in the repository too. There they link to files outside docs/, such as the changelog or a test, and
have no navigation. Here each file that a page links to becomes a page of the site, and index pages get a navigation.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePath

from website.navigation import HOME, PROJECT, SECTIONS, TITLES, TOP

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

# Where the site has the source files that pages link to.
SOURCE = "source/"
LANGUAGES = {".py": "python", ".yml": "yaml", ".toml": "toml"}
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def prepare(folder: Path) -> None:
    """Make the folder that Sphinx reads."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder)
    pages = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in PROJECT)]
    for page in pages:
        here = site_path(page)
        text = rewrite_links(page.read_text(), page, here) + navigation(here)
        write(folder / here, text)
    for path in sorted({target for page in pages for target in linked_files(page)}):
        if (here := site_path(path)).startswith(SOURCE):
            write(folder / here, as_source_page(path))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def navigation(here: str) -> str:
    """Return what makes a page the parent of others in the navigation, or nothing."""
    below: Iterable[str] = TOP if here == HOME else SECTIONS.get(here, ())
    entries = [entry(page, os.path.relpath(page, PurePath(here).parent)) for page in below]
    return "\n".join(["", "```{toctree}", ":hidden:", "", *entries, "```", ""]) if entries else ""


def entry(page: str, path: str) -> str:
    """Return a page's line in a navigation; without a title of its own it gets the page's."""
    name = path.removesuffix(".md")
    return f"{TITLES[page]} <{name}>" if page in TITLES else name


def linked_files(page: Path) -> list[Path]:
    """Return the files of this repository that a page links to."""
    links = [match[0] for match in LINK.finditer(FENCED.sub("", page.read_text()))]
    return [target for link in links if (target := resolve(page, link)) is not None and target.is_file()]


def resolve(page: Path, link: str) -> Path | None:
    """Return the file that a relative link names, or None for another kind of link."""
    if re.match(r"[a-z]+:|#|/", link):
        return None
    return (page.parent / link.partition("#")[0]).resolve()


def site_path(path: Path) -> str:
    """Return where a file of this repository is in the folder that Sphinx reads."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return PROJECT.get(name, f"{SOURCE}{name}.md")


def rewrite_links(text: str, page: Path, here: str) -> str:
    """Return a page's text with links that are right in the site; code blocks stay as they are."""

    def rewrite(match: re.Match[str]) -> str:
        target = resolve(page, match[0])
        if target is None or not target.is_file():
            return match[0]  # Sphinx reports a link that leads nowhere
        _, hash_sign, anchor = match[0].partition("#")
        return os.path.relpath(site_path(target), PurePath(here).parent) + hash_sign + anchor

    end, parts = 0, []
    for block in FENCED.finditer(text):
        parts += [LINK.sub(rewrite, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(rewrite, text[end:])])


def as_source_page(path: Path) -> str:
    """Return a page that shows a source file. The search leaves it out, so that it finds the documentation."""
    language = LANGUAGES.get(path.suffix, "text")
    head = "---\norphan: true\nnosearch: true\n---\n"
    return f"{head}# {path.relative_to(ROOT)}\n\n``````{language}\n{path.read_text()}\n``````\n"
