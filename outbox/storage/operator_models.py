"""The tables with records for operators, as Peewee models: processes, counts, audit log, attempts, periodic jobs."""

from __future__ import annotations

import peewee

from outbox.storage.models import JsonField, NamedBySettings, UtcDateTimeField


class Process(peewee.Model):
    """A process that has reported itself within the last day."""

    id = peewee.CharField(36, primary_key=True)
    kind = peewee.CharField(20)
    host = peewee.CharField()
    pid = peewee.IntegerField()
    started_at = UtcDateTimeField()
    seen_at = UtcDateTimeField()
    details = JsonField()

    class Meta:
        table_name = "outbox_process"
        model_metadata_class = NamedBySettings
        kind = "process"


class Total(peewee.Model):
    """What all processes have counted, in total."""

    name = peewee.CharField(100)
    labels = peewee.CharField(500)
    value = peewee.DoubleField()

    class Meta:
        table_name = "outbox_total"
        model_metadata_class = NamedBySettings
        kind = "total"
        primary_key = peewee.CompositeKey("name", "labels")


class Minute(peewee.Model):
    """What all processes have counted in one minute; in a quarter of an hour or an hour, if the name says so."""

    minute = UtcDateTimeField()
    name = peewee.CharField(100)
    labels = peewee.CharField(500)
    value = peewee.DoubleField()

    class Meta:
        table_name = "outbox_minute"
        model_metadata_class = NamedBySettings
        kind = "minute"
        primary_key = peewee.CompositeKey("minute", "name", "labels")


class Audit(peewee.Model):
    """An entry of the audit log: which operator did what to which events, how many those were, and how it ended.

    Entries of an older version of the library have only `who`, `action`, `filters`, `affected` and the times.
    """

    id = peewee.UUIDField(primary_key=True)
    at = UtcDateTimeField()
    who = peewee.CharField()
    action = peewee.CharField(20)
    filters = JsonField()
    affected = peewee.BigIntegerField()
    ended_at = UtcDateTimeField(null=True)
    claimed = peewee.CharField(null=True)
    via = peewee.CharField(null=True)
    parameters = JsonField(null=True)
    # "done" or "interrupted"; null while the action is running. `cause` says what interrupted it.
    outcome = peewee.CharField(20, null=True)
    cause = peewee.CharField(null=True)
    # The progress of an action on many events: how many matched at its start, the last one that it has read, the last
    # one that it will read, and when its process has last reported. `stop_by`: the operator who asked it to stop.
    total = peewee.BigIntegerField(null=True)
    position = peewee.UUIDField(null=True)
    last_id = peewee.UUIDField(null=True)
    seen_at = UtcDateTimeField(null=True)
    stop_by = peewee.CharField(null=True)

    class Meta:
        table_name = "outbox_audit"
        model_metadata_class = NamedBySettings
        kind = "audit"


class AuditBatch(peewee.Model):
    """The ids of the events that one batch of an action has changed."""

    audit_id = peewee.UUIDField()
    number = peewee.IntegerField()
    at = UtcDateTimeField()
    ids = JsonField()

    class Meta:
        table_name = "outbox_audit_batch"
        model_metadata_class = NamedBySettings
        kind = "audit_batch"
        primary_key = peewee.CompositeKey("audit_id", "number")


class Attempt(peewee.Model):
    """One attempt to deliver an event to one destination, and how it ended (see OUTBOX_ATTEMPTS)."""

    id = peewee.BigIntegerField(primary_key=True)
    event_id = peewee.UUIDField()
    destination = peewee.CharField()
    # When it began, and how long it took.
    at = UtcDateTimeField()
    seconds = peewee.DoubleField()
    # "delivered", "retry", "unavailable" or "failed".
    outcome = peewee.CharField(20)
    http_status = peewee.IntegerField(null=True)
    error = peewee.TextField(null=True)
    # The host and the process that made the attempt.
    worker = peewee.CharField()

    class Meta:
        table_name = "outbox_attempt"
        model_metadata_class = NamedBySettings
        kind = "attempt"


class Periodic(peewee.Model):
    """A periodic job that a scheduler has declared: its schedule, and its last and next runs."""

    name = peewee.CharField(100, primary_key=True)
    # "actor" or "function".
    kind = peewee.CharField(10)
    # As declared: `0 3 * * *` or `minutes=5`; and in words: "at 03:00 every day".
    schedule = peewee.TextField()
    words = peewee.TextField()
    timezone = peewee.CharField(100)
    paused = peewee.BooleanField()
    # When a scheduler has first declared it, and when a scheduler had it last.
    declared_at = UtcDateTimeField()
    seen_at = UtcDateTimeField()
    # Only times after this one are run: when it was declared, when its schedule was changed, or when it was resumed.
    scheduled_from = UtcDateTimeField()
    # The last scheduled time that was dealt with: its run was stored or skipped.
    last_scheduled_at = UtcDateTimeField(null=True)
    next_run_at = UtcDateTimeField(null=True)
    # When an operator asked for a run that no scheduler has stored yet.
    requested_at = UtcDateTimeField(null=True)
    # The last run that was stored: the time that it is for, and the id of its row in the table of events.
    last_run_at = UtcDateTimeField(null=True)
    last_run_id = peewee.UUIDField(null=True)
    # The last scheduled time that was skipped, and why.
    skipped_at = UtcDateTimeField(null=True)
    skipped_why = peewee.TextField(null=True)
    # The last call of a function: when it ended, for which run, how long it took, and its error if it failed.
    ended_at = UtcDateTimeField(null=True)
    ended_id = peewee.UUIDField(null=True)
    ended_seconds = peewee.DoubleField(null=True)
    ended_error = peewee.TextField(null=True)

    class Meta:
        table_name = "outbox_periodic"
        model_metadata_class = NamedBySettings
        kind = "periodic"
