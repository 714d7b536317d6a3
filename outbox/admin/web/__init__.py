"""The dashboard: a web page for operators, as an ASGI application.

It shows the results of the queries of `outbox.admin`, and runs the actions of `outbox.operations`. `outbox dashboard`
serves it. To serve it inside another application, mount the application that `make_app` returns:

    Mount("/outbox", make_app(authenticate=RequireScope("staff")))
"""

from __future__ import annotations

from importlib.util import find_spec

from outbox.errors import SettingsError

_missing = [name for name in ("jinja2", "starlette") if find_spec(name) is None]
if _missing:
    raise SettingsError(
        f"The dashboard needs {', '.join(_missing)}, not installed here: pip install 'dramatiq-outbox[ui]'"
    )

from outbox.admin.web.app import make_app  # noqa: E402
from outbox.admin.web.authentication import RequireScope  # noqa: E402
from outbox.admin.web.passwords import Basic  # noqa: E402

__all__ = ["Basic", "RequireScope", "make_app"]
