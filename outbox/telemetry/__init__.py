"""Counters, logs, traces, process reports, heartbeats and the audit log."""
