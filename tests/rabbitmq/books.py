"""A service that consumes a queue: each event has one effect, a row."""

import outbox


@outbox.handler("test.*", name="books")
def book(event: outbox.Event) -> None:
    outbox.current().dialect.run("INSERT INTO book (event) VALUES (%s)", (str(event.id),))
