"""Probes of a container: HTTP, TCP, gRPC health, or a command inside it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import grpc
import grpc.aio

from tandem.kube.kinds import Json

Execute = Callable[[list[str]], Awaitable[bool]]
"""Runs a command in the container; whether it succeeded."""
_SERVING = b"\x08\x01"


def _plain(message: bytes) -> bytes:
    return message


async def watch(
    probe: Json, address: str, ports: Mapping[str, int], execute: Execute, heard: Callable[[bool], None]
) -> None:
    """Probe for ever; tells `heard` each time that enough answers in a row agree."""
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    row, last = 0, None
    while True:
        well = await once(probe, address, ports, execute)
        row = row + 1 if well is last else 1
        last = well
        if row >= (probe.get("successThreshold") or 1 if well else probe.get("failureThreshold") or 3):
            heard(well)
        await asyncio.sleep(probe.get("periodSeconds") or 10)


async def once(probe: Json, address: str, ports: Mapping[str, int], execute: Execute) -> bool:
    """One answer; none in time is a bad one."""
    try:
        async with asyncio.timeout(probe.get("timeoutSeconds") or 1):
            if "exec" in probe:
                return await execute(list(probe["exec"]["command"]))
            if "httpGet" in probe:
                return await http_get(probe["httpGet"], address, ports)
            if "tcpSocket" in probe:
                return await _connects(address, port_of(probe["tcpSocket"]["port"], ports))
            return await _serves(address, probe["grpc"])
    except (TimeoutError, OSError, aiohttp.ClientError, grpc.aio.AioRpcError):
        return False


async def http_get(asked: Json, address: str, ports: Mapping[str, int]) -> bool:
    """Whether the status is from 200 to 399. Certificates are not verified, as a kubelet does."""
    scheme = (asked.get("scheme") or "HTTP").lower()
    host = asked.get("host") or address
    url = f"{scheme}://{host}:{port_of(asked['port'], ports)}/{(asked.get('path') or '/').lstrip('/')}"
    headers = {header["name"]: header["value"] for header in asked.get("httpHeaders") or ()}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=False, allow_redirects=False) as answer,
    ):
        return 200 <= answer.status < 400


def port_of(port: int | str, ports: Mapping[str, int]) -> int:
    """A number, or the number of a port of this name."""
    return ports[port] if isinstance(port, str) and not port.isdigit() else int(port)


async def _connects(address: str, port: int) -> bool:
    _, writer = await asyncio.open_connection(address, port)
    writer.close()
    return True


async def _serves(address: str, asked: Json) -> bool:
    service = (asked.get("service") or "").encode()
    async with grpc.aio.insecure_channel(f"{address}:{asked['port']}") as channel:
        call = channel.unary_unary("/grpc.health.v1.Health/Check", _plain, _plain)
        answer = await call(bytes([10, len(service)]) + service if service else b"")
    return bytes(answer) == _SERVING
