"""Events: emitting them, what is stored of one, and how destinations see it."""
