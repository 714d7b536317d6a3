"""The example's receiver on Flask, with a point at which it can be made to die."""

from flask import Response

from examples.receivers.with_flask import app
from tests.apps import crash_point

__all__ = ["app"]


@app.after_request
def may_die(response: Response) -> Response:
    crash_point.before_answering(response.status_code)
    return response
