from uuid import uuid4

import pytest


@pytest.fixture
def prefix() -> str:
    """Return a prefix of keys in Redis that no other test uses."""
    return f"test-{uuid4().hex}:throttle:"
