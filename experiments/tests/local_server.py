"""A web server on this machine, which offers a few files, in parts too, and may break off."""

import http.server
import threading
from contextlib import contextmanager
from typing import ClassVar


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `files`; `ranges` and `cut` say what it can and does."""

    files: ClassVar[dict[str, bytes]] = {}
    ranges = True
    cut: int | None = None
    asked: ClassVar[list[str | None]] = []

    def do_GET(self):
        asked = self.headers.get("Range")
        type(self).asked.append(asked)
        content = self.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if begin and begin >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        self.wfile.write(content[begin : self.cut])

    def log_message(self, *_):
        pass


@contextmanager
def serving(files):
    """The handler, with `url`, `files` and the ranges it was `asked` for."""
    handler = type("Handler", (Server,), {"files": dict(files), "asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    handler.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
