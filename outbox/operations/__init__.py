"""The operator's changes to events: which events, what is done to them, and the audit of it."""
