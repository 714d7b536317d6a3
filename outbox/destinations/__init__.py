"""What events are delivered to: the protocol, the registry, Python handlers and Redis Streams."""
