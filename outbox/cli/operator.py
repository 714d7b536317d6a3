"""Find out who runs this command, for the audit log."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping

from outbox.current_outbox import loaded_settings
from outbox.telemetry import logs
from outbox.telemetry.audit import Operator

# Variables that name the person, the most telling first. Anyone can set them to anything.
CLAIMS = ("SUDO_USER", "LOGNAME", "USER")
VIA = "command line"


def operator() -> Operator:
    """Return who runs this command, and let the audit's log lines be written to standard error.

    The name is the one that the operating system knows the process by. What the environment says instead, for example
    who called `sudo`, is kept beside it as a claim.
    """
    logs.set_up(loaded_settings().log_format)
    name = user_name(os.getuid())
    return Operator(f"{name}@{socket.gethostname()}", claimed=claimed_name(name, os.environ), via=VIA)


def user_name(uid: int) -> str:
    """Return the name of the operating system's user; `uid 1000` for one without a name, as in many containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def claimed_name(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the first other name that the environment gives, if any."""
    given = [environ.get(variable, "").strip() for variable in CLAIMS]
    return next((each for each in given if each and each != name), None)
