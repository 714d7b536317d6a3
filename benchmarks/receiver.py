"""A receiver that costs little: one thread, many connections. It writes down how old each event was when it came.

`python -m benchmarks.receiver FILE` says its port, and appends a line `endpoint seconds` for every event.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TextIO

from benchmarks.endpoints import FLOODING, HANGING

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1_000


async def serve(file: TextIO) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = int(head.partition("content-length:")[2].split("\r\n")[0])
                body = await reader.readexactly(length)
                endpoint = head.split(" ")[1].strip("/")
                if endpoint == HANGING:
                    await reader.read()  # until they have had enough
                    break
                while endpoint == FLOODING:
                    writer.write(HINTS)
                    await writer.drain()  # raises when they have had enough
                age = time.time() - json.loads(body)["data"]["at"]
                file.write(f"{endpoint} {age:.6f}\n")
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the worker has closed its connection: the usual end
        finally:
            file.flush()
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=1_024)
    print(server.sockets[0].getsockname()[1], flush=True)  # the process that started it reads this
    await server.serve_forever()


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a", buffering=1) as ledger:
        asyncio.run(serve(ledger))
