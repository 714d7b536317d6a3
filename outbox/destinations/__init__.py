"""Destinations, to which events are delivered: the protocol, the registry, Python handlers and Redis Streams."""
