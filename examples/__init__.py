"""Applications that show the outbox at work."""
