"""The table of workflows, and the function that starts one, once for each command id."""

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
    """Return the workflow that the command has started, and whether this call started it.

    If several calls with one command id run at once, the first starts the workflow; the others wait for its commit,
    and return the same workflow. If the first fails, the next one starts it.
    """
    with outbox.inbox.claim(command_id, "start-workflow") as first:
        if first:
            workflow = Workflow.create(command_id=command_id, name=name)
            outbox.emit("Workflow", workflow.id, "workflow.started", {"name": name})
        else:
            workflow = Workflow.get(Workflow.command_id == command_id)
    return workflow, first
