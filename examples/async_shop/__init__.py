"""A shop whose requests are coroutines: FastAPI, Peewee on asyncpg, and an outbox. See `app.py`."""
