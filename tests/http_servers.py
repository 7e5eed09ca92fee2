"""An HTTP server in this process, in the place of somebody else's."""

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from email.message import Message
from typing import Any, NamedTuple


class Asked(NamedTuple):
    method: str
    path: str  # with its query
    headers: Message
    body: bytes


@contextlib.contextmanager
def serving(answer: Callable[[Asked], tuple[int, Any]]) -> Iterator[str]:
    """Its address. An answer is a status and a text, or what is sent as JSON."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = answer(Asked(self.command, self.path, self.headers, body))
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
