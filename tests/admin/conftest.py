"""Fixtures of the tests of what operators see."""

from tests.support.jobs import charge, stub_broker

__all__ = ["charge", "stub_broker"]
