"""Debian releases in a chroot, made by debootstrap: other Pythons and servers, without containers.

Each run has a mount namespace of its own. Whatever is mounted there is gone when the run's last process ends, however
it ends: nothing has to be unmounted. The tests run as a user without privileges.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.matrix.machine_settings import (
    apt_configuration,
    debian_mirror,
    local_paths,
    network_environment,
    pip_environment,
)
from tests.matrix.system import MatrixError, Versions, cache_folder, copy_checkout, run_or_fail

USER = "tester"
CHECKOUT = f"/home/{USER}/checkout"
PACKAGES = ("ca-certificates", "git", "netbase", "postgresql", "python3", "python3-pip", "redis-server", "tzdata")
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
NAMESPACE = ("unshare", "--mount", "--propagation", "private")
# Mounts what the tests need, then becomes the command. $1: the root folder; $2: paths to share, one on a line.
ENTER = r"""
set -e
root=$1 shared=$2
shift 2
mount -t proc proc "$root/proc"
mkdir -p "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
printf '%s' "$shared" | while IFS= read -r path; do
    if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}"; touch "$root$path"; fi
    mount --bind "$path" "$root$path"
    mount -o remount,bind,ro "$root$path"
done
exec chroot "$root" "$@"
"""
SET_UP = f"""
set -e
printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d  # start no service
chmod +x /usr/sbin/policy-rc.d
mkdir -p /etc/postgresql-common
echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends {" ".join(PACKAGES)}
apt-get clean
id {USER} > /dev/null 2>&1 || useradd --create-home --shell /bin/sh {USER}
"""
POSTGRES_VERSION = "exec $(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)/postgres --version"


def missing_for_debian() -> str | None:
    """Return what this machine lacks for a chroot, in words; None if it can make one."""
    if os.geteuid() != 0:
        return "you are not root"
    if shutil.which("debootstrap") is None:
        return "there is no debootstrap (Debian and Ubuntu: apt install debootstrap)"
    done = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"no mount namespace can be made: {done.stderr.strip()}"


@dataclass(frozen=True, slots=True)
class Debian:
    """A release of Debian, such as trixie, in a folder of the cache."""

    name: str

    @property
    def root(self) -> Path:
        return cache_folder() / self.name

    def prepare(self) -> None:
        ready = self.root / "ready"
        if not ready.exists():
            self._bootstrap()
            ready.touch()
        for name in ("resolv.conf", "hosts"):
            shutil.copyfile(f"/etc/{name}", self.root / "etc" / name)
        checkout = self.root / CHECKOUT.lstrip("/")
        copy_checkout(checkout)
        run_or_fail(*self._inside("chown", "-R", f"{USER}:{USER}", CHECKOUT))

    def versions(self) -> Versions:
        python = self._said("python3", "--version")
        postgres = self._said("/bin/sh", "-c", POSTGRES_VERSION)
        redis = self._said("redis-server", "--version")
        return Versions(python.split()[1], postgres.split()[2], redis.partition("v=")[2].split()[0])

    def command(self, arguments: Sequence[str]) -> list[str]:
        become = ("runuser", "-u", USER, "--", "env", "-C", CHECKOUT, f"HOME=/home/{USER}")
        return self._inside(*become, "python3", "dev.py", "test", *arguments)

    def _bootstrap(self) -> None:
        """Make the release anew, in a folder that stays unless all of it worked: the next try removes it."""
        if self.root.exists():
            shutil.rmtree(self.root)
        self.root.mkdir(parents=True)
        mirror = debian_mirror()
        environment = {**os.environ, "PATH": PATH}
        make = ["debootstrap", "--variant=minbase", self.name, str(self.root), *([] if mirror is None else [mirror])]
        run_or_fail(*NAMESPACE, *make, environment=environment)
        (self.root / "etc/apt/apt.conf.d/99matrix").write_text(apt_configuration())
        for name in ("resolv.conf", "hosts"):
            shutil.copyfile(f"/etc/{name}", self.root / "etc" / name)
        # Without what is mounted for pip: the packages write some of the same files.
        run_or_fail(*self._enter([], "/bin/sh", "-c", SET_UP))

    def _inside(self, *command: str) -> list[str]:
        """Return the command that runs this one in the chroot, with this machine's way to wheels and mirrors."""
        settings = pip_environment()
        pairs = (f"{name}={value}" for name, value in settings.items())
        return self._enter(local_paths(settings), "/usr/bin/env", *pairs, *command)

    def _enter(self, shared: Sequence[Path], *command: str) -> list[str]:
        environment = {"PATH": PATH, "LANG": "C.UTF-8", **network_environment()}
        pairs = (f"{name}={value}" for name, value in environment.items())
        lines = "".join(f"{path}\n" for path in shared)
        enter = (*NAMESPACE, "/bin/sh", "-c", ENTER, "enter", str(self.root), lines)
        return [*enter, "/usr/bin/env", "-i", *pairs, *command]

    def _said(self, *command: str) -> str:
        done = subprocess.run(self._inside(*command), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MatrixError(f"{self.name}: {command[0]} failed: {done.stderr.strip()}")
        return done.stdout.strip()
