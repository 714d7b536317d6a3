"""Programs that end by themselves, run as real processes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from outbox.settings import PREFIX
from tests.support.servers import PATIENCE_SECONDS

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]


def environment(**settings: Any) -> dict[str, str]:
    """This process's environment with other settings: `environment(batch_size=7)`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return inherited | {PREFIX + name.upper(): str(value) for name, value in settings.items()}


def run(*command: str | Path, cwd: Path = ROOT, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run it to its end; what it said, on either stream, is in `stdout`."""
    return subprocess.run(
        command,
        env=environment(**settings),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def run_python(code: str, *arguments: str, **settings: Any) -> str:
    """Run some Python and have it end well; what it said."""
    done = run(sys.executable, "-c", code, *arguments, **settings)
    assert done.returncode == 0, done.stdout
    return done.stdout
