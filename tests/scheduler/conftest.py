"""Tests with real processes share their stage."""

from tests.support.processes import make_stage, stage

__all__ = ["make_stage", "stage"]
