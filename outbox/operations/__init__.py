"""Changes that operators make to events: which events (filters), which change (actions, apply_action), and
the audit log.

The command line and the dashboard use it, and `Outbox.retry_failed_events`.
"""
