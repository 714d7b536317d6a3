"""Find the certificate authorities (CAs) that libcurl should trust: a file or a folder, as OpenSSL reads them.

They are the same as those of httpx, so that both clients accept the same receivers.
"""

from __future__ import annotations

import importlib.util
import os
import ssl
from typing import NamedTuple, Self

# The environment variables of OpenSSL.
FILE_VARIABLE, FOLDER_VARIABLE = "SSL_CERT_FILE", "SSL_CERT_DIR"


class CaCertificates(NamedTuple):
    """The paths of the CA certificates. With neither, no receiver's certificate is accepted."""

    file: str | None = None
    folder: str | None = None

    @classmethod
    def default(cls) -> Self:
        """Return the CAs that httpx uses: those of the environment variables, else of certifi, else of the system."""
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
        """Return the CAs of the system. libcurl's default would be the paths of the machine on which it was built."""
        paths = ssl.get_default_verify_paths()
        return cls(paths.cafile, paths.capath)
