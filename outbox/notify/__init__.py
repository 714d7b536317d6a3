"""How a commit reaches a worker, without Dramatiq: the after-commit callback, the notifier's thread, the timer."""
