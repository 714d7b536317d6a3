"""Parse what an operator asks the dashboard to do: which action, and on which events.

The confirmation page gets this in the query string, and the form that runs the action sends it in its fields. Both are
parsed here into the same `ActionRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import parse_qsl

from starlette.datastructures import QueryParams
from starlette.requests import Request

from outbox.admin.web import parameters
from outbox.admin.web.http_errors import HTTPError
from outbox.core import Outbox
from outbox.errors import RegistrationError
from outbox.operations.actions import ACTIONS, DELETE, DELETE_EVERYTHING, Action, with_parameters
from outbox.operations.filters import Filter

MAX_FIELDS = 2 * parameters.MAX_IDS
MAX_FORM_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """An action, its parameters, and the events that `filter` selects.

    `ids` has the events that the operator selected one by one; it is empty for all that match the filter.
    """

    action: Action
    filter: Filter
    ids: tuple[str, ...]
    # For `fail`: the reason, which is stored with the events.
    reason: str
    # For `replay`: the destination; None means all destinations.
    destination: str | None
    # The filter as query parameters, for links and hidden fields.
    parameters: dict[str, str]
    # Whether the operator pressed a button on the page of one event, and should return there.
    from_event_page: bool
    # Likewise, on the page of blocked keys.
    from_keys_page: bool = False

    def complete_action(self, box: Outbox) -> Action:
        """Return the action with the reason or the destination that was entered."""
        try:
            return with_parameters(
                self.action, box.dialect, box.registry, reason=self.reason, destination=self.destination
            )
        except RegistrationError as error:
            raise HTTPError(400, "Unknown destination", str(error)) from None

    @property
    def must_be_typed(self) -> str | None:
        """Return what the operator has to type first: for the deletion of all events. None for all else."""
        is_everything = not self.ids and not self.parameters
        return DELETE_EVERYTHING if self.action.name == DELETE.name and is_everything else None

    @property
    def hidden_fields(self) -> list[tuple[str, str]]:
        """Return the fields by which the form on the confirmation page repeats this request."""
        return [
            ("action", self.action.name),
            ("scope", "selected" if self.ids else "all"),
            *(("id", id) for id in self.ids),
            *self.parameters.items(),
            *([("from", "event")] if self.from_event_page else []),
            *([("from", "keys")] if self.from_keys_page else []),
        ]


def parse_action_request(given: QueryParams) -> ActionRequest:
    """Return the request that these parameters describe; raise HTTPError (400) if they are invalid."""
    action = ACTIONS.get(parameters.parse_text(given, "action"))
    if action is None:
        raise HTTPError(400, "Unknown action", f"“action” must be one of {', '.join(ACTIONS)}.")
    filter = _emitted_before(parameters.parse_filter(given), parameters.parse_time(given, "before"))
    ids = parameters.parse_ids(given.getlist("id"))
    scope = parameters.parse_text(given, "scope")
    if scope not in ("all", "selected") or (scope == "selected" and not ids):
        raise HTTPError(400, "No events selected", "Go back and select some, or choose all that match.")
    return ActionRequest(
        action=action,
        filter=filter if scope == "all" else Filter(ids=ids),
        ids=tuple(map(str, ids)) if scope == "selected" else (),
        reason=parameters.parse_text(given, "reason"),
        destination=parameters.parse_text(given, "to") or None,
        parameters=parameters.filter_parameters(given),
        from_event_page=given.get("from") == "event" and scope == "selected",
        from_keys_page=given.get("from") == "keys",
    )


def _emitted_before(filter: Filter, confirmed_at: datetime | None) -> Filter:
    """Return the filter without events that were emitted after the confirmation page was shown.

    The count on that page did not include them.
    """
    if confirmed_at is None or (filter.until is not None and filter.until <= confirmed_at):
        return filter
    return replace(filter, until=confirmed_at)


async def read_form(request: Request) -> QueryParams:
    """Return the fields of a URL-encoded form. A body that is too large for the dashboard's forms is refused (413)."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise HTTPError(413, "The form is too large", "Choose all that match a filter instead.")
    try:
        return QueryParams(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise HTTPError(400, "The form is invalid", "Go back, reload the page, and try again.") from None
