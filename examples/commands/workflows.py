"""Workflows: started by commands, each once."""

from __future__ import annotations

import peewee

import outbox

# Workflows, events and the inbox are in one database, so that one transaction holds all three.
database = outbox.current().database


class Workflow(peewee.Model):
    id = peewee.AutoField()
    command_id = peewee.CharField(index=True)
    name = peewee.CharField()

    class Meta:
        database = database
        table_name = "workflow"


def create_tables() -> None:
    outbox.create_tables()
    database.create_tables([Workflow])


def start(command_id: str, name: str) -> tuple[Workflow, bool]:
    """The workflow that the command started, and whether it was just now.

    Of several that come at once, one starts it; the others wait for its commit, and find what it has made. Should it
    fail, the next one starts it.
    """
    with outbox.inbox.claim(command_id, "start-workflow") as first:
        if first:
            workflow = Workflow.create(command_id=command_id, name=name)
            outbox.emit("Workflow", workflow.id, "workflow.started", {"name": name})
        else:
            workflow = Workflow.get(Workflow.command_id == command_id)
    return workflow, first
