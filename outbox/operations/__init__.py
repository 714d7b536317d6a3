"""Change events for an operator: a filter selects events, an action changes them, and the audit log records that.

The command line, the dashboard and `Outbox.retry_failed_events` use this package.
"""
