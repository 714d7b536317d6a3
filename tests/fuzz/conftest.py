"""Streams and consumers as those of the consumer's own tests."""

from tests.consumer.conftest import make_consumer, stream

__all__ = ["make_consumer", "stream"]
