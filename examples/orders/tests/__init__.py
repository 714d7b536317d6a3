"""The shop's own tests, with the test kit of the outbox: `pytest examples/orders/tests`. No worker and no server."""
