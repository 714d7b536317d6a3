"""Proof under faults: real processes, real kills, and an account that must balance.

    python3 dev.py chaos --minutes 5 --seed 7

Emitters commit and roll back, workers deliver to a handler, a webhook and a stream, and a schedule of faults, which
the seed decides, goes over all of them and over PostgreSQL and Redis. Everybody keeps a ledger. In the end the checker
reads the ledgers and the table, and decides whether the promises were kept.

    world       the processes, and how they are started again
    faults      what happens to them
    schedule    what happens when, from a seed
    account     what the ledgers and the table say
    checker     whether that is right
"""
