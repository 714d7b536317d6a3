"""Send requests with httpcore, each in a thread with a connection of its own (`client="httpx"`, the default)."""
