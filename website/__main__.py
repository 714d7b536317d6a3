"""Build the documentation site: `python3 dev.py docs`. A warning of Sphinx, such as a broken link, is an error."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx_build

from website.manifests import problems_of_manifests
from website.pages import ROOT, prepare

CONFIGURATION = Path(__file__).resolve().parent
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"

LOADS = {
    ".html": re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"https?:|<link\b[^>]*\bhref=\"https?:"),
    ".css": re.compile(r"url\([\"']?https?:|@import\s+[\"']https?:"),
}


def loads_from_elsewhere(site: Path) -> list[str]:
    """Return what the built pages would load from other hosts: there should be nothing."""
    texts = ((path, path.read_text(errors="replace")) for path in sorted(site.rglob("*")) if path.suffix in LOADS)
    found = ((path.relative_to(site), LOADS[path.suffix].search(text)) for path, text in texts)
    return [f"{path}: {match[0]}" for path, match in found if match is not None]


def main() -> int:
    shutil.rmtree(SITE, ignore_errors=True)
    prepare(PAGES)
    strict = ["--fail-on-warning", "--keep-going", "--fresh-env", "--quiet"]
    code: int = sphinx_build([*strict, "--conf-dir", str(CONFIGURATION), str(PAGES), str(SITE)])
    if code == 0 and (found := list(problems_of_manifests(ROOT / "docs" / "how-to" / "kubernetes.md"))):
        print("These manifests are invalid:", *found, sep="\n", file=sys.stderr)
        return 1
    if code == 0 and (found := loads_from_elsewhere(SITE)):
        print("These pages load something from another host:", *found, sep="\n", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
