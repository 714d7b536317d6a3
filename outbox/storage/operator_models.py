"""The tables with records for operators, as Peewee models: processes, counts, and the audit log."""

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
    """What all processes have counted in one minute."""

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
    """An entry of the audit log: which operator did what to which events, and how many those were."""

    id = peewee.UUIDField(primary_key=True)
    at = UtcDateTimeField()
    who = peewee.CharField()
    action = peewee.CharField(20)
    filters = JsonField()
    affected = peewee.BigIntegerField()
    ended_at = UtcDateTimeField(null=True)

    class Meta:
        table_name = "outbox_audit"
        model_metadata_class = NamedBySettings
        kind = "audit"
