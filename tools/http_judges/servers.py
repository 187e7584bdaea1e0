"""Servers in processes of their own that judge: nginx as a reverse proxy, granian, and the router's."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from router.http_server.server import HttpServer
from tandem.apps.cli.ports import free_port
from tools.http_judges.echo import SAW, application, saw

_START_S: Final = 20.0
_CONFIGURATION: Final = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  large_client_header_buffers 8 64k; client_header_timeout 30s; client_body_timeout 30s;
  server {{ listen 127.0.0.1:{port} reuseport; location / {{ proxy_pass http://127.0.0.1:{behind}; }} }}
}}
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[dict[str, int]]:
    """Ports by judge, of those that are installed here; `ours` is always one of them."""
    async with AsyncExitStack() as stack:
        ports = {"ours": free_port("127.0.0.1")}
        commands = {"ours": [sys.executable, "-m", "tools.http_judges.servers", str(ports["ours"])]}
        if (nginx := shutil.which("nginx")) is not None:
            ports["nginx"], behind = free_port("127.0.0.1"), await asyncio.start_server(_tell, "127.0.0.1", 0)
            stack.push_async_callback(_closed, behind)
            told = folder / "nginx.conf"
            inside = behind.sockets[0].getsockname()[1]
            told.write_text(_CONFIGURATION.format(folder=folder, port=ports["nginx"], behind=inside))
            commands["nginx"] = [nginx, "-c", str(told), "-e", str(folder / "error.log")]
        if (granian := shutil.which("granian")) is not None:
            ports["granian"] = free_port("127.0.0.1")
            where = ["--host", "127.0.0.1", "--port", str(ports["granian"]), "--http", "1", "--no-ws"]
            commands["granian"] = [granian, "--interface", "asginl", *where, "tools.http_judges.echo:application"]
        for command in commands.values():
            stack.callback(_end, _begun(command))
        for port in ports.values():
            await _listens(port)
        yield ports


async def _listens(port: int) -> None:
    async with asyncio.timeout(_START_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


async def _tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one request of nginx, which has read it already."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line[15:] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        body = await reader.readexactly(int(lengths[0])) if lengths else b""
        told = saw(head.split(b" ")[0], body)
        writer.write(b"HTTP/1.1 200 OK\r\n%b: %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % (SAW, told))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _closed(server: asyncio.Server) -> None:
    server.close()


def _begun(command: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _serve(port: int) -> None:
    app: Any = application
    await HttpServer(app).start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
