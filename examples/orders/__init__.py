"""A small shop on the outbox.

    shop.py        the application: its tables, what it does in a transaction, and its handlers
    services.py    what the handlers talk to: a card provider, a mail server, a warehouse; not always in the mood
    customers.py   who places the orders
    summary.py     what became of everything, and whether it adds up
    __main__.py    `python -m examples.orders`: all of it in one process, without any server

Read `shop.py` first.
"""
