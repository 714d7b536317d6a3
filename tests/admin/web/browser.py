"""What a browser without scripts does with a page: reads it, follows its links, fills in its forms."""

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

from httpx import Response

from outbox.admin.web.app import make_app
from outbox.admin.web.dashboard import Dashboard
from outbox.core import Outbox
from tests.admin.web.client import Client, anybody

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Form:
    """Its fields as they are sent if nobody touches them, and its buttons."""

    def __init__(self, attributes: dict[str, str]) -> None:
        self.action = attributes.get("action", "")
        self.method = attributes.get("method", "get").lower()
        self.fields: list[tuple[str, str]] = []
        self.buttons: list[tuple[str, str]] = []


class Document(HTMLParser):
    """A page: its text, its tags, its links and forms."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.links: dict[str, str] = {}
        self.forms: list[Form] = []
        self._text: list[str] = []
        self._may_break = False
        self._link: str | None = None
        self._link_text = ""
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self._text)).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: "" if value is None else value for name, value in attrs}
        self.tags.append((tag, attributes))
        self._may_break = tag == "wbr"  # where a browser may break a line, and shows no space
        if tag == "a":
            self._link, self._link_text = attributes.get("href"), ""
        elif tag == "form":
            self.forms.append(Form(attributes))
        elif self.forms and tag == "input" and attributes.get("name"):
            kind = attributes.get("type", "text")
            if kind not in ("checkbox", "radio") or "checked" in attributes:
                self.forms[-1].fields.append((attributes["name"], attributes.get("value", "")))
        elif self.forms and tag == "button" and "name" in attributes:
            self.forms[-1].buttons.append((attributes["name"], attributes["value"]))

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._link is not None:
            self.links[re.sub(r"\s+", " ", self._link_text).strip()] = self._link
            self._link = None

    def handle_data(self, data: str) -> None:
        if self._may_break and self._text:
            self._text[-1] += data
        else:
            self._text.append(data)
        self._may_break = False
        if self._link is not None:
            self._link_text += data


class Browser:
    """Follows redirects, keeps cookies, and refuses to be shown an error unless it was expected."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def get(
        self, path: str, parameters: Mapping[str, str] | None = None, *, expect: int = 200, **more: str
    ) -> Document:
        return self._read(
            self.client.get(path, params={**({} if parameters is None else parameters), **more} or None), expect
        )

    def submit(self, form: Form, *added: tuple[str, str], expect: int = 200, without: tuple[str, ...] = ()) -> Document:
        fields = [(name, value) for name, value in form.fields if name not in without] + list(added)
        if form.method == "get":
            return self._read(self.client.get(f"{form.action}?{urlencode(fields)}"), expect)
        body = urlencode(fields)
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._read(self.client.post(form.action, content=body, headers=kind), expect)

    def _read(self, response: Response, expect: int) -> Document:
        assert response.status_code == expect, Document(response.text).text
        return Document(response.text)


def form_to(page: Document, path: str) -> Form:
    (found,) = [form for form in page.forms if form.action.endswith(path)][:1]
    return found


def browser_with(box: Outbox, **options: Any) -> Browser:
    """Return a browser on a dashboard with these options."""
    app = make_app(box, authenticate=anybody)
    app.state.dashboard = Dashboard(box, **options)
    return Browser(Client(app))
