"""Circuit breakers, rate limits and concurrency limits of destinations, local and shared."""
