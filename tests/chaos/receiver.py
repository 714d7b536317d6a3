"""The webhook's other end, as a process: `python -m tests.chaos.receiver PORT LEDGER MODE`.

The file MODE says what it does, in a word: `accept`; `lose` accepts, and hangs up without an answer; `hang` says
nothing while that is the word; `refuse` answers 503; `garbage` answers what is no HTTP. What it accepts is in the
ledger before it answers.
"""

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.chaos.ledger import Ledger, digest

ACCEPT, LOSE, HANG, REFUSE, GARBAGE = ("accept", "lose", "hang", "refuse", "garbage")
DATA = b',"data":'


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ledger: Ledger
    mode: Path

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        match self.mode.read_text():
            case "hang":
                while self.mode.read_text() == HANG:
                    time.sleep(0.05)
                self.close_connection = True
            case "refuse":
                self._answer(503)
            case "garbage":
                self.wfile.write(b"\x00\xff this is no HTTP \r\n\r\n")
                self.close_connection = True
            case "lose":
                self._accept(body)
                self.ledger.write("lost", id=self.headers["webhook-id"])
                self.close_connection = True
            case _:
                self._accept(body)
                self._answer(204)

    def _accept(self, body: bytes) -> None:
        payload = body[body.index(DATA) + len(DATA) : -1]
        self.ledger.write("accepted", id=self.headers["webhook-id"], body=digest(body), payload=digest(payload))

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128


if __name__ == "__main__":
    Request.ledger, Request.mode = Ledger(sys.argv[2]), Path(sys.argv[3])
    server = Server(("127.0.0.1", int(sys.argv[1])), Request)
    print("receiving", flush=True)  # noqa: T201 - to whoever waits for it
    server.serve_forever()
