"""A stage for the doctor's patients."""

from tests.processes import make_stage

__all__ = ["make_stage"]
