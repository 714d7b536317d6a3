"""A small shop on the outbox.

    shop.py        the application: its tables, its transactions, and its handlers
    services.py    what the handlers call: a card provider, a mail server, a warehouse; unreliable on purpose
    customers.py   places the orders
    summary.py     counts what has happened, and checks that the numbers agree
    __main__.py    `python -m examples.orders`: all of it in one process, without any server
    tests/         the tests of the shop, with `outbox.testing`

Read `shop.py` first.
"""
