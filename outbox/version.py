"""The version of the package; a test compares it with `pyproject.toml`."""

from __future__ import annotations

__version__ = "0.1.0"
