#!/usr/bin/env python3
"""What a contributor runs, with nothing to install first: `python3 dev.py COMMAND [ARGUMENT ...]`.

The first command makes `.venv` from requirements.lock; later ones start at once, until the lock changes.
"""

# Nothing here that a Python 3.8 can't read: it must get as far as saying that it is too old.
from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
STAMP = VENV / "stamp"
LOCK = ROOT / "requirements.lock"
BROWSER_STAMP = VENV / "stamp-browser"
BROWSER_LOCK = ROOT / "requirements-browser.lock"
OLDEST_VENV = ROOT / ".venv-oldest"
OLDEST_LOCK = ROOT / "requirements-oldest.lock"
DOCS_VENV = ROOT / ".venv-docs"
DOCS_LOCK = ROOT / "requirements-docs.lock"
RELEASE_VENV = ROOT / ".venv-release"
RELEASE_LOCK = ROOT / "requirements-release.lock"
PYPROJECT = ROOT / "pyproject.toml"
DIST = ROOT / "dist"
SBOM = ROOT / "build" / "dramatiq-outbox.cdx.json"
BROWSER = "--browser"
OLDEST = "--oldest"
FAST = "--fast"
# What touches each dependency: a part of the suite that takes a minute or two.
OLDEST_TESTS = (
    "tests/events/test_emit.py", "tests/admin/test_metrics.py", "tests/telemetry/test_tracing.py",
    "tests/consumer/test_effects.py",
    "tests/delivery/test_deliver.py", "tests/webhooks/test_request_builder.py", "tests/destinations/test_stream.py",
    "tests/throttle/test_stores.py", "tests/inbox/test_once.py", "tests/dramatiq/test_broker.py",
    "tests/scheduler/test_timetable.py", "tests/admin/web/test_pages.py",
)  # fmt: skip
COMPILING = (
    "-m", "uv", "pip", "compile", "-q", "--universal", "--python-version=3.11", "--generate-hashes",
    "--no-emit-index-url",
)  # fmt: skip
PINNED_UV = re.compile(r"^uv==.*(\n +--hash=.*)+", re.MULTILINE)
PIP_SETTING = re.compile(r"^\S+\.([\w-]+)='(.*)'$", re.MULTILINE)
# Most tests wait for something: more of them at a time than there are cores.
PROCESSES = max(6, os.cpu_count() or 1)
# Where each of them may start a server that takes long to start, such as RabbitMQ.
FEWER_PROCESSES = max(4, os.cpu_count() or 1)
# Each process runs neighbouring tests, which share fixtures; one that has no tests left takes some from another.
IN_BLOCKS = "--dist=worksteal"
# Folders of tests that need what a bare machine lacks, and are run by a word of their own.
APART = {f"--{folder}": folder for folder in ("faketime", "nats", "pgbouncer", "rabbitmq", "sentinel", "netns")}


def run(args: list[str]) -> None:
    """run the demo; --help tells its options"""
    become("-m", "examples.orders", *args)


def test(args: list[str]) -> None:
    """check, then run every test; with arguments, only pytest with those; --fast, --browser and such: others"""
    if BROWSER in args:
        set_up_browser()
        become("-m", "pytest", "tests/browser", *(arg for arg in args if arg != BROWSER))
    if OLDEST in args:
        set_up_oldest()
        # What has been deprecated since is told by the newest versions, not by the oldest.
        asked = [arg for arg in args if arg != OLDEST] or [
            f"--numprocesses={PROCESSES}",
            IN_BLOCKS,
            *OLDEST_TESTS,
        ]
        become("-m", "pytest", "-W", "default", *asked, python=OLDEST_VENV / "bin" / "python")
    if asked := [word for word in APART if word in args]:
        # Each starts servers of its own, and mostly waits for them: several folders run side by side.
        together = [f"--numprocesses={FEWER_PROCESSES}", IN_BLOCKS] if len(asked) > 1 else []
        folders = [f"tests/{APART[word]}" for word in asked]
        become("-m", "pytest", *together, *folders, *(arg for arg in args if arg not in asked))
    if FAST in args:
        become("-m", "pytest", FAST, f"--numprocesses={PROCESSES}", IN_BLOCKS, *(arg for arg in args if arg != FAST))
    if not args:
        with compiling_tests():
            check([])
        args = [f"--numprocesses={PROCESSES}", IN_BLOCKS]
    become("-m", "pytest", *args)


@contextlib.contextmanager
def compiling_tests() -> Iterator[None]:
    """Collect the tests beside the block: in a new checkout each of pytest's processes would compile all of them."""
    command = [str(PYTHON), "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as collecting:
        try:
            yield
        except BaseException:
            collecting.terminate()
            raise


def check(args: list[str]) -> None:
    """lint, formatting and types; changes no file"""
    step("-m", "ruff", "check", *args)
    step("-m", "ruff", "format", "--check", *args)
    step("-m", "mypy", *args)


def bench(args: list[str]) -> None:
    """measure the speed, beside its limits; --help tells its options"""
    become("-m", "benchmarks", *args)


def mutants(args: list[str]) -> None:
    """break one thing at a time and see that a test notices: minutes; --help tells its options"""
    become("-m", "tests.mutants", *args)


def chaos(args: list[str]) -> None:
    """break everything that can break, again and again, and check the account: --minutes N --seed S"""
    become("-m", "tests.chaos", *args)


def docs(args: list[str]) -> None:
    """build the documentation site into build/site; `docs write` writes the parts of pages that the code knows"""
    if args == ["write"]:
        become("-m", "website.generated")
    set_up_docs()
    become("-m", "website", *args, python=DOCS_VENV / "bin" / "python")


def alerts(args: list[str]) -> None:
    """check the alert rules with Prometheus's promtool, and which of them fire when (Debian: prometheus)"""
    promtool = shutil.which("promtool")
    if promtool is None:
        fail("promtool is not on the PATH: `apt install --no-install-recommends prometheus`, or download Prometheus.")
    rules, tests = ROOT / "docs" / "reference" / "alerts.yml", ROOT / "tests" / "alerts" / "firing.yml"
    if call(promtool, "check", "rules", str(rules)) != 0:
        sys.exit(1)
    sys.exit(call(promtool, "test", "rules", str(tests), *args))


def matrix(args: list[str]) -> None:
    """run every test on other Pythons and servers; --only NAME, --list, -- pytest's arguments"""
    become("-m", "tests.matrix", *args)


def build(args: list[str]) -> None:
    """build what is released: sdist and wheel in dist/, checked, and a list of what they need (SBOM) in build/"""
    set_up_release()
    shutil.rmtree(DIST, ignore_errors=True)
    SBOM.parent.mkdir(exist_ok=True)
    step("-m", "uv", "build", "--no-build-isolation", f"--python={PYTHON}", f"--out-dir={DIST}", *args)
    release = RELEASE_VENV / "bin" / "python"
    step("-m", "twine", "check", "--strict", *map(str, sorted(DIST.glob("dramatiq_outbox-*"))), python=release)
    # What an application gets with every extra, in the versions of the lock: without the tools of development.
    needed = SBOM.with_name("runtime-requirements.txt")
    step(*COMPILING, "-o", str(needed), "--all-extras", f"--constraint={LOCK}", PYPROJECT.name)
    listing = ["-m", "cyclonedx_py", "requirements", f"--pyproject={PYPROJECT}", "--output-reproducible"]
    step(*listing, "--output-format=JSON", f"--output-file={SBOM}", str(needed), python=release)
    say(f"built {DIST.name}/ and {SBOM.relative_to(ROOT)}")


def lock(args: list[str]) -> None:
    """write the locks from pyproject.toml; --upgrade takes newer versions"""
    compiling = [*COMPILING, "--custom-compile-command=python3 dev.py lock", *args, "-o"]
    step(*compiling, LOCK.name, "--all-extras", "--group=dev", PYPROJECT.name)
    step(*compiling, BROWSER_LOCK.name, f"--group={PYPROJECT.name}:browser")
    step(*compiling, DOCS_LOCK.name, f"--group={PYPROJECT.name}:docs")
    step(*compiling, RELEASE_LOCK.name, f"--group={PYPROJECT.name}:release")
    oldest = ["--resolution=lowest-direct", "--all-extras", "--group=oldest"]
    step(*compiling, OLDEST_LOCK.name, *oldest, PYPROJECT.name)


COMMANDS = {
    "run": run,
    "test": test,
    "check": check,
    "alerts": alerts,
    "docs": docs,
    "chaos": chaos,
    "bench": bench,
    "mutants": mutants,
    "matrix": matrix,
    "build": build,
    "lock": lock,
}


def set_up() -> None:
    """Make .venv anew, unless a stamp, written last, says that it is whole and made from what is here now."""
    source = "\0".join([sys.version, str(VENV), LOCK.read_text(), PYPROJECT.read_text()])
    stamp = hashlib.sha256(source.encode()).hexdigest()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == stamp:
        return
    if Path(sys.prefix) == VENV:
        # Started from the .venv that is about to go: let the Python behind it do this.
        replace_process(os.path.realpath(sys.executable), str(ROOT / "dev.py"), *sys.argv[1:])
    say("setting up .venv from requirements.lock, this once")
    make_venv(VENV, LOCK)
    STAMP.write_text(stamp)


def set_up_oldest() -> None:
    """An environment with the oldest versions that pyproject.toml allows, and the tools of requirements.lock."""
    source = "\0".join(
        [sys.version, str(OLDEST_VENV), LOCK.read_text(), OLDEST_LOCK.read_text(), PYPROJECT.read_text()]
    )
    stamp = hashlib.sha256(source.encode()).hexdigest()
    written = OLDEST_VENV / "stamp"
    if written.exists() and written.read_text() == stamp:
        return
    say(f"setting up {OLDEST_VENV.name} from {OLDEST_LOCK.name}, this once")
    make_venv(OLDEST_VENV, LOCK, OLDEST_LOCK)
    written.write_text(stamp)


def set_up_docs() -> None:
    """An environment with what builds the documentation site: nothing else needs it."""
    set_up_apart(DOCS_VENV, DOCS_LOCK)


def set_up_release() -> None:
    """An environment with what checks and describes a release: nothing else needs it."""
    set_up_apart(RELEASE_VENV, RELEASE_LOCK)


def set_up_apart(folder: Path, lock: Path) -> None:
    """Make an environment from a lock of its own, without the project."""
    stamp = hashlib.sha256("\0".join([sys.version, str(folder), lock.read_text()]).encode()).hexdigest()
    written = folder / "stamp"
    if written.exists() and written.read_text() == stamp:
        return
    say(f"setting up {folder.name} from {lock.name}, this once")
    make_venv(folder, lock, with_project=False)
    written.write_text(stamp)


def make_venv(folder: Path, *locks: Path, with_project: bool = True) -> None:
    """Make it anew; what a later lock names takes the place of what an earlier one does."""
    if find_spec("pip") is None:
        fail(f"{sys.executable} has no pip: install it first (Debian and Ubuntu: apt install python3-pip)")
    try:
        # Without a pip of its own: Debian keeps what that takes in yet another package.
        venv.create(folder, clear=True, symlinks=True, with_pip=False)
    except OSError as error:
        fail(f"cannot make {folder}: {error.strerror}; remove it as the user who made it")
    python = folder / "bin" / "python"
    if not UV.exists():
        install_uv()
    for lock in locks:
        # Wheels only: building from source would fetch tools that the lock doesn't pin.
        install("--require-hashes", "--only-binary=:all:", f"--requirement={lock}", python=python)
    if with_project:
        install("--no-build-isolation", f"--editable={ROOT}", python=python)


def set_up_browser() -> None:
    """What drives a browser, from a lock of its own: nothing else needs it. The browser itself is the machine's."""
    stamp = hashlib.sha256(BROWSER_LOCK.read_bytes()).hexdigest()
    if BROWSER_STAMP.exists() and BROWSER_STAMP.read_text() == stamp:
        return
    say(f"adding {BROWSER_LOCK.name} to .venv, this once")
    install("--require-hashes", "--only-binary=:all:", f"--requirement={BROWSER_LOCK}")
    BROWSER_STAMP.write_text(stamp)


def install_uv() -> None:
    """Install uv alone, with pip: for all the rest it needs a tenth of the time that pip would."""
    pinned = PINNED_UV.search(LOCK.read_text())
    if pinned is None:
        fail(f"{LOCK.name} does not pin uv: restore it")
    requirement = VENV / "uv.txt"
    requirement.write_text(pinned[0] + "\n")
    install_with_pip("--require-hashes", "--only-binary=:all:", f"--requirement={requirement}")


def install(*what: str, python: Path = PYTHON) -> None:
    """Install with uv, and if that fails with pip: uv does not read all of pip's settings, such as a proxy."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    # Every file is checked against the lock's hashes: it does not matter which index has it.
    uv = [str(UV), "pip", "install", f"--python={python}", "--index-strategy=unsafe-best-match", "--no-deps"]
    if call(*uv, *what, settings=uv_settings(listed.stdout)) != 0:
        say("uv could not install this, for the reason given above: pip tries")
        install_with_pip(*what, python=python)


def install_with_pip(*what: str, python: Path = PYTHON) -> None:
    pip = [sys.executable, "-m", "pip", f"--python={python}", "--disable-pip-version-check", "--no-input"]
    if call(*pip, "install", "--no-deps", *what) != 0:
        fail("the installation failed, for the reason given above; the same command tries again")


def uv_settings(listed: str) -> dict[str, str]:
    """Return what `pip config list` says of indexes and certificates, in the variables that uv reads."""
    # The environment's settings are listed first: they win over those of files.
    found = {name: value.replace("\\n", " ").split() for name, value in reversed(PIP_SETTING.findall(listed))}
    separators = {"UV_FIND_LINKS": ","}
    return {
        variable: separators.get(variable, " ").join(found[name])
        for name, variable in (
            ("index-url", "UV_DEFAULT_INDEX"),
            ("extra-index-url", "UV_INDEX"),
            ("find-links", "UV_FIND_LINKS"),
            ("cert", "SSL_CERT_FILE"),
        )
        if name in found
    }


def step(*args: str, python: Path = PYTHON) -> None:
    """Run the environment's Python; if that fails, end with its exit code."""
    say(shlex.join(args[1:]))
    code = call(str(python), *args)
    if code != 0:
        sys.exit(code if code > 0 else 128 - code)  # killed by signal n: 128 + n, as a shell has it


def call(*command: str, settings: dict[str, str] | None = None) -> int:
    # In a session of its own: Ctrl-C reaches us alone, and ends it without a traceback of its own.
    environment = (settings or {}) | os.environ
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            raise


def become(*args: str, python: Path = PYTHON) -> NoReturn:
    """Turn into the environment's Python: signals and the exit code are then its own."""
    say(shlex.join(args[1:]))
    os.chdir(ROOT)
    replace_process(str(python), *args)


def replace_process(*command: str) -> NoReturn:
    os.execv(command[0], command)  # noqa: S606 - no shell, on purpose


def say(text: str) -> None:
    print("dev.py:", text, file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    sys.exit(f"dev.py: {text}")


def main(name: str = "", *args: str) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - the only place that can say so
        fail(f"Python 3.11 or later is needed, and {sys.executable} is {sys.version.split()[0]}")
    if name not in COMMANDS:
        print("usage: python3 dev.py COMMAND [ARGUMENT ...]\n")
        print(*(f"  {name:<7} {command.__doc__}" for name, command in COMMANDS.items()), sep="\n")
        sys.exit(0 if name in {"-h", "--help", "help"} else 2)
    # Tests start hundreds of Pythons: without compiled modules each of them compiles the library anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    set_up()
    COMMANDS[name](list(args))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
