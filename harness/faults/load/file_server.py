"""Serves a folder over HTTP, to put load on the folder's disk: GET reads a file, PUT writes and fsyncs one.

python -m harness.faults.load.file_server FOLDER        prints its port once it listens
"""

import http.server
import os
import pathlib
import sys
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: pathlib.Path

    def do_GET(self) -> None:
        path = self._path()
        self._answer(path.read_bytes() if path.exists() else b"")

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        path = self._path()
        temporary = path.with_name(f"{path.name}.{threading.get_ident()}")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self._answer(b"")

    def _path(self) -> pathlib.Path:
        return self.folder / pathlib.PurePosixPath(self.path).name

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing, because writing a log line for each request would put load on the machine, too."""


def main(folder: str) -> None:
    Handler.folder = pathlib.Path(folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
