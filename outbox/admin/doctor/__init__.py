"""The checks of `outbox doctor`."""
