"""A request that is answered with a reason instead of a page."""

from __future__ import annotations


class HTTPError(Exception):
    """What went wrong and what to do, for whoever asked."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.text = text
