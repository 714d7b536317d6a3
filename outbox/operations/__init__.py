"""Changes that operators make to events: a filter selects events, an action changes them, the audit log records it.

The command line, the dashboard and `Outbox.retry_failed_events` use it.
"""
