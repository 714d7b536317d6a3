"""The certificate with which a webhook identifies itself to the receiver (mutual TLS): its files, and a TLS context.

Certificates are short-lived, and programs replace their files. So the files are read again for a new connection when
they have changed. libcurl reads them for each new connection anyway.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import NamedTuple


class ClientCertificate(NamedTuple):
    """The paths of PEM files: the certificate with its chain, and its key, which may be in the same file."""

    certificate: str
    key: str

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the files into a context; raise OSError or ssl.SSLError if they can't be used."""
        context.load_cert_chain(self.certificate, self.key, password=_refuse_passphrase)


def _refuse_passphrase() -> str:
    # Without this function, OpenSSL would ask for the passphrase on the terminal, and wait.
    raise ssl.SSLError("the key is protected by a passphrase")


class ClientContext:
    """A TLS context with a client certificate. Several threads may use it."""

    def __init__(self, files: ClientCertificate, make_context: Callable[[], ssl.SSLContext]) -> None:
        self._files = files
        self._make_context = make_context
        self._loaded: tuple[ssl.SSLContext, object] | None = None

    def current(self) -> ssl.SSLContext:
        """Return a context with the files as they are now. While they can't be used, return the one before."""
        loaded = self._loaded
        try:
            version = [(found.st_ino, found.st_size, found.st_mtime_ns) for found in map(os.stat, self._files)]
            if loaded is not None and loaded[1] == version:
                return loaded[0]
            context = self._make_context()
            self._files.load_into(context)
        except OSError:  # for example, the certificate is replaced and its key is not yet
            if loaded is None:
                raise
            return loaded[0]
        self._loaded = (context, version)
        return context
