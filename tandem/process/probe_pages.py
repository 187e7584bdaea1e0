"""The pages that a process serves on its port for scrapes and probes, from a thread of its own.

`/alive` answers as long as the interpreter does; `/ready` says whether the service takes work and if not, why; every
other path gives the metrics.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from tandem.process.listening import bound
from tandem.process.logs import event

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_log = logging.getLogger(__name__)

_PLAIN: Final = ("Content-Type", "text/plain; charset=utf-8")


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each scrape, none of which keeps the process from ending."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Bind as all servers of ours do, and look up no names."""
        host, port = str(self.server_address[0]), int(self.server_address[1])
        self.socket.close()
        self.socket = bound(host, port)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = host, int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """Give no answer to a client that hangs up or sends something that is not a request, and leave no
        traceback."""
        event(_log, "scrape_failed", level=logging.DEBUG, client=str(client_address), problem=str(sys.exception()))


class _Silent(WSGIRequestHandler):
    """Does not log each probe."""

    def log_message(self, format: str, *args: object) -> None:
        return


def serve_pages(host: str, port: int, metrics: "WSGIApplication", problem: Callable[[], str | None]) -> int:
    """Listen from a daemon thread; gives the port. Raises `OSError`."""

    def pages(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        match environ.get("PATH_INFO"):
            case "/alive":
                return _say(start, None, "alive")
            case "/ready":
                return _say(start, problem(), "ready")
            case _:
                return metrics(environ, start)

    server = make_server(host, port, pages, _Server, _Silent)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return int(server.server_port)


def _say(start: "StartResponse", problem: str | None, word: str) -> Iterable[bytes]:
    start("200 OK" if problem is None else "503 Service Unavailable", [_PLAIN])
    return [f"{word if problem is None else problem}\n".encode()]
