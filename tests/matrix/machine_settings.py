"""Read where this machine gets Debian packages and wheels from, so that a chroot gets them from the same place."""

import ast
import os
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tests.matrix.system import output_of

NETWORK_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# What apt is told about the way to its mirrors; the rest of its configuration is the machine's own matter.
APT_LINES = re.compile(r"Acquire::(https?::|Check-Valid-Until)", re.IGNORECASE)
PIP_LINE = re.compile(r"(?P<section>[^.]+)\.(?P<option>[\w-]+)=(?P<value>.+)")


def debian_mirror() -> str | None:
    """Return the mirror that apt uses, or None: then debootstrap takes its default."""
    listing = ("apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages")
    for line in output_of(*listing).splitlines():
        address, _, label = line.partition(" ")
        if label == "Debian":
            return address
    return None


def apt_configuration() -> str:
    """Return the lines of apt's configuration that say how it reaches its mirrors, such as a proxy."""
    lines = output_of("apt-config", "dump").splitlines()
    return "".join(f"{line}\n" for line in lines if APT_LINES.match(line))


def network_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in NETWORK_VARIABLES if name in os.environ}


def pip_environment() -> dict[str, str]:
    """Return pip's settings on this machine, from its files and the environment, as environment variables."""
    # The environment that dev.py makes has no pip: the Python behind it has one.
    return parse_pip_settings(output_of(os.path.realpath(sys.executable), "-m", "pip", "config", "list"))


def parse_pip_settings(listed: str) -> dict[str, str]:
    """Turn the output of `pip config list` into PIP_* variables; the environment's own win, as in pip."""
    found: dict[str, dict[str, str]] = {"files": {}, "environment": {}}
    for line in listed.splitlines():
        if (match := PIP_LINE.fullmatch(line)) is None:
            continue
        name = "PIP_" + match["option"].replace("-", "_").upper()
        origin = "environment" if match["section"] == ":env:" else "files"
        found[origin][name] = str(ast.literal_eval(match["value"]))
    return found["files"] | found["environment"]


def local_paths(settings: dict[str, str]) -> list[Path]:
    """Return the files and folders of this machine that pip's settings name: certificates, wheels, an index."""
    named = [_as_path(word) for value in settings.values() for word in value.split()]
    return sorted({_served_folder(path) for path in named if path is not None and path.exists()})


def _as_path(word: str) -> Path | None:
    if word.startswith("/"):
        return Path(word)
    parts = urlsplit(word)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def _served_folder(path: Path) -> Path:
    """Return the folder above an index named `simple`: its pages link to the files beside it."""
    return path.parent if path.name == "simple" else path
