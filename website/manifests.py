"""Check the Kubernetes manifests in the documentation against Kubernetes' own schemas."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import yaml

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kubernetes_validate

# The oldest and the newest version that the page is for, and one in between.
VERSIONS = ("1.26", "1.30", "1.35")
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)


def problems_of_manifests(page: Path) -> Iterator[str]:
    """Yield what is wrong in the manifests of a page; it must have some."""
    blocks = _BLOCK.findall(page.read_text())
    if not blocks:
        yield f"{page.name} has no manifests."
    for manifest in (each for block in blocks for each in yaml.safe_load_all(block)):
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{page.name}: {manifest['kind']} {manifest['metadata']['name']}, Kubernetes {version}: {error}"
