"""A receiver that costs as little as Python allows: `python -m benchmarks.sink` says its port, and answers 204."""

from __future__ import annotations

import asyncio
from typing import cast

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
LENGTH = b"content-length: "


class Sink(asyncio.Protocol):
    """Requests one after another on a connection, in whatever pieces they come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            length = int(head.partition(LENGTH)[2].split(b"\r\n", 1)[0])
            if len(self._received) < end + 4 + length:
                return
            self._received = self._received[end + 4 + length :]
            self._transport.write(ANSWER)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # the process that started it reads this
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
