"""A ledger: the balance of each account, in a database of its own."""

from __future__ import annotations

from typing import Any

import peewee

import outbox

# The inbox is in the same database as the balances, so that one transaction holds both.
database = outbox.current().database


class Account(peewee.Model):
    name = peewee.CharField(primary_key=True)
    cents = peewee.BigIntegerField(default=0, constraints=[peewee.Check("cents >= 0")])

    class Meta:
        database = database
        table_name = "ledger_account"


def open_ledger() -> None:
    """Create the tables: the accounts and the inbox. This service emits nothing, so it needs no outbox."""
    outbox.inbox.create_tables()
    database.create_tables([Account])


@outbox.inbox.once("ledger", key="id")
def enter(id: str, event: dict[str, Any]) -> None:
    """Credit or debit an account, once for each id. If it would be overdrawn, raise an error and change nothing."""
    account, cents = event["aggregate_id"], event["data"]["cents"]
    Account.insert(name=account).on_conflict_ignore().execute()
    Account.update(cents=Account.cents + cents).where(Account.name == account).execute()
