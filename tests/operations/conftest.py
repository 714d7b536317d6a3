"""Fixtures of the tests of operators' actions."""

from tests.support.jobs import charge, stub_broker

__all__ = ["charge", "stub_broker"]
