"""From a commit to a worker, without Dramatiq."""
