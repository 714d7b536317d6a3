"""Whose certificates are accepted: a file or a folder of authorities, as OpenSSL reads them."""

from __future__ import annotations

import importlib.util
import os
import ssl
from typing import NamedTuple, Self

# OpenSSL's own variables.
FILE_VARIABLE, FOLDER_VARIABLE = "SSL_CERT_FILE", "SSL_CERT_DIR"


class CaCertificates(NamedTuple):
    """Where they are. With neither, nobody is trusted."""

    file: str | None = None
    folder: str | None = None

    @classmethod
    def default(cls) -> Self:
        """Those that httpx takes: what the environment names, or certifi's; and without certifi the system's."""
        file, folder = os.environ.get(FILE_VARIABLE), os.environ.get(FOLDER_VARIABLE)
        if file:
            return cls(file=file)
        if folder:
            return cls(folder=folder)
        if importlib.util.find_spec("certifi") is not None:
            import certifi

            return cls(file=certifi.where())
        return cls.of_the_system()

    @classmethod
    def of_the_system(cls) -> Self:
        """libcurl's own idea of it is that of the machine that it was built on."""
        paths = ssl.get_default_verify_paths()
        return cls(paths.cafile, paths.capath)
