"""Another service: it credits accounts in a database of its own, which holds its inbox, too.

What the inbox skips is in the log, a line for each, so that it is known even of a process that was killed.
"""

import logging
import os
from decimal import Decimal

import peewee

import outbox
import tests.apps.ledger_bus  # noqa: F401 - it says where the stream called `bus` is
from outbox.storage.connect import open_database

DATABASE = "OUTBOX_TEST_LEDGER_DATABASE"

database = open_database(os.environ[DATABASE])
outbox.configure(inbox_database=database)
logging.getLogger("outbox").setLevel(logging.DEBUG)


class Account(peewee.Model):
    id = peewee.AutoField()
    balance = peewee.DecimalField(max_digits=14, decimal_places=2, default=Decimal(0))

    class Meta:
        database = database
        table_name = "account"


@outbox.handler("ledger.entered", name="balance")
def credit(event: outbox.Event) -> None:
    """Once, or the balance is wrong."""
    amount = Decimal(event.payload["amount"])
    Account.update(balance=Account.balance + amount).where(Account.id == event.aggregate_id).execute()
