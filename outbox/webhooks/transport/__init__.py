"""How requests reach a receiver over HTTP."""
