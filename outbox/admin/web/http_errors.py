"""The exception that a page raises to respond with an error page; `app.py` renders it with `error.html`."""

from __future__ import annotations


class HTTPError(Exception):
    """An HTTP status, with a title that says what went wrong and a text that says what to do."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.text = text
