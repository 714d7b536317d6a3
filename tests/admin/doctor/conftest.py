"""Fixtures of the doctor's tests."""

from tests.support.processes import make_stage

__all__ = ["make_stage"]
