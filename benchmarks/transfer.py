"""KV pulls against what the machine can do: memcpy for shared memory, a bare socket loop for TCP, and the same loop
with TLS for TCP with certificates. Small pulls over shared memory are also held against raw nixl with a polling
holder, where `nixl` is installed. `--before TREE` compares with the tree of another revision instead.

Two processes: a holder that exports, and this one, which pulls. Each measurement is the median of 7 rounds in
which every contender runs in turn, so that ratios compare the same machine in the same state. Exits non-zero when
a limit is not met; the last line is the verdict.
"""

import argparse
import asyncio
import multiprocessing
import random
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from benchmarks import transfer_nixl
from benchmarks.transfer_before import compare
from benchmarks.transfer_nixl import RawNixl
from kv_transfer.export import Exporter
from kv_transfer.fetch import Fetcher
from kv_transfer.transport.protocol import BlockReceived, Delivered, Transport
from kv_transfer.transport.shm import ShmSettings, ShmTransport
from kv_transfer.transport.tcp import TcpSettings, TcpTransport
from kv_transfer.transport.tcp_tls import encryption
from tandem.core.deadlines import Deadlines
from tandem.core.kv import Layout
from tandem.core.metrics import NullMeter
from tandem.engine.digest import Digester
from tandem.engine.digest_threads import DigestThreads
from tandem.engine.protocol import FetchJob, FetchTarget
from tandem.process.system import SystemClock
from tandem.process.tls import client_context, server_context
from tests.contract.block_space import KEYRING, TestSpace, pull_open, ready_lease, remote_kv
from tests.worlds.certificates import shared_certificates

ROUNDS: Final = 7
LIMIT: Final = 0.8
HOLDER_EPOCH, RECEIVER_EPOCH = 11, 22
_HEADS, _HEAD_DIM = 8, 64


@dataclass(frozen=True)
class PullCase:
    """`pieces` blocks of `size` bytes in scattered slots, pulled `repeats` times per measurement."""

    label: str
    size: int
    pieces: int
    repeats: int
    limit: float | None
    nixl_limit: float | None = None

    @property
    def total(self) -> int:
        return self.size * self.pieces * self.repeats

    @property
    def layout(self) -> Layout:
        tokens = self.size // (2 * _HEADS * _HEAD_DIM * 2)
        return Layout("bench", "plain", "bfloat16", 2, 1, tokens, _HEADS, _HEAD_DIM)


CASES: Final = (
    PullCase("128 x 1 MiB", 1 << 20, 128, 2, LIMIT),
    PullCase("32 x 64 KiB", 64 << 10, 32, 60, None, 0.7),
    PullCase("32 x 8 KiB", 8 << 10, 32, 150, None, 0.5),
)


@dataclass(frozen=True)
class PullRow:
    """One contender's figure against its limit, GB/s. `ratios` are of single rounds."""

    name: str
    rate: float
    reference: float
    ratios: list[float]
    limit: float | None

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def met(self) -> bool:
        return self.limit is None or self.ratio >= self.limit

    def text(self) -> str:
        asked = "reported" if self.limit is None else f">= {self.limit} {'ok' if self.met else 'NOT MET'}"
        spread = f"{min(self.ratios):7.2f}{self.ratio:6.2f}{max(self.ratios):6.2f}"
        return f"{self.name:<38}{self.rate:8.2f}{self.reference:10.2f}{spread}  {asked}"


# ---- the other process ----------------------------------------------------------------------------------------


class _Lasting(TestSpace):
    """Its lease outlives acknowledgement, so that it serves every round."""

    __test__ = False

    def release(self, lease_id: str) -> None:
        return None


def transports() -> dict[str, Transport]:
    """Every contender of ours, by name."""
    certificates = shared_certificates()
    return {
        "shm": ShmTransport(ShmSettings()),
        "tcp": TcpTransport(TcpSettings()),
        "tls": TcpTransport(TcpSettings(), encryption("on", certificates, certificates)),
    }


def _holder(case: PullCase, pipe: Connection) -> None:
    asyncio.run(_hold(case, pipe))


async def _hold(case: PullCase, pipe: Connection) -> None:
    """Export one lease over all transports until told to stop."""
    space = _Lasting(case.layout, 2 * case.pieces, HOLDER_EPOCH)
    names = ready_lease(space, case.pieces)
    exporter = Exporter(space, KEYRING, SystemClock(), Deadlines())
    ours = transports()
    pipe.send(({name: await transport.serve(exporter) for name, transport in ours.items()}, names))
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    for transport in ours.values():
        await transport.close()


def _secured_sender(case: PullCase, pipe: Connection) -> None:
    _bare_sender(case, pipe, secure=True)


def _send_secured(peer: socket.socket, views: list[memoryview]) -> None:
    context = server_context(shared_certificates())
    assert context is not None
    secured = context.wrap_socket(peer, server_side=True)
    while secured.recv(1):
        for view in views:
            secured.sendall(view)


def _bare_sender(case: PullCase, pipe: Connection, secure: bool = False) -> None:
    """The bare loop's sending half: one byte asks for all pieces."""
    space = TestSpace(case.layout, 2 * case.pieces, HOLDER_EPOCH)
    ready_lease(space, case.pieces)
    views = [space.memory.block(slot) for slot in range(case.pieces)]
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname())
    peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if secure:
        _send_secured(peer, views)
        return
    while peer.recv(1):
        pending = list(views)
        while pending:
            sent = peer.sendmsg(pending)
            while pending and sent >= pending[0].nbytes:
                sent -= pending.pop(0).nbytes
            if sent:
                pending[0] = pending[0][sent:]


# ---- contenders -----------------------------------------------------------------------------------------------

Contender = Callable[[], Awaitable[None]]


class Receiver:
    """This side: a pool of its own, and every way of filling it from the holder's pieces."""

    def __init__(
        self,
        case: PullCase,
        addresses: dict[str, str],
        names: tuple[bytes, ...],
        bare: tuple[str, int],
        secured: tuple[str, int],
    ) -> None:
        self._case = case
        self._names = names
        self._space = TestSpace(case.layout, 2 * case.pieces, RECEIVER_EPOCH)
        self._source = TestSpace(case.layout, 2 * case.pieces, HOLDER_EPOCH)
        ready_lease(self._source, case.pieces)
        self._slots = random.Random(1).sample(range(2 * case.pieces), case.pieces)
        self._digester = Digester(case.layout)
        self._targets = tuple(
            FetchTarget(index, name, self._slots[index], 1, case.layout.block_tokens)
            for index, name in enumerate(names)
        )
        self.addresses = addresses
        self.transports = transports()
        clock, deadlines, hashing = SystemClock(), Deadlines(), DigestThreads(case.layout)
        self._fetchers = {
            scheme: Fetcher(self._space, [transport], clock, deadlines, NullMeter(), hashing=hashing)
            for scheme, transport in self.transports.items()
        }
        self._socket, plain = (socket.create_connection(each) for each in (bare, secured))
        for each in (self._socket, plain):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = client_context(shared_certificates())
        assert context is not None
        self._secured = context.wrap_socket(plain, server_hostname="localhost")

    def block(self, index: int) -> memoryview:
        return self._space.memory.block(self._slots[index])

    async def pull(self, scheme: str) -> None:
        """A whole pull with verification off."""
        request = pull_open(self._source, self._space, self._names)
        pull = await self.transports[scheme].open(self.addresses[scheme], request, self, 5.0)
        async with aclosing(pull.events()) as events:
            got = [event async for event in events]
        await pull.close()
        count = sum(
            len(event.blocks) if isinstance(event, Delivered) else isinstance(event, BlockReceived) for event in got
        )
        assert count == self._case.pieces

    async def fetch(self, scheme: str) -> None:
        """A whole fetch, verified, as a decode worker does it."""
        self._space.landed_words.clear()
        remote = remote_kv(self._source, self._space, (self.addresses[scheme],))
        report = await self._fetchers[scheme].fetch(FetchJob(1, self._targets), remote)
        assert report.reason is None, report.reason

    async def memcpy(self, digest: bool = False) -> None:
        memory = self._source.memory
        for index in range(self._case.pieces):
            target = self.block(index)
            target[:] = memory.block(index)
            if digest:
                self._digester.content_words(target)

    async def bare(self, digest: bool = False) -> None:
        self._socket.sendall(b"?")
        views = [self.block(index) for index in range(self._case.pieces)]
        if self._case.size >= 1 << 20:
            for view in views:
                self._fill([view])
                if digest:
                    self._digester.content_words(view)
            return
        self._fill(views)
        if digest:
            for view in views:
                self._digester.content_words(view)

    async def bare_secured(self, digest: bool = False) -> None:
        self._secured.sendall(b"?")
        for index in range(self._case.pieces):
            view, done = self.block(index), 0
            while done < view.nbytes:
                done += self._secured.recv_into(view[done:])
            if digest:
                self._digester.content_words(view)

    def _fill(self, views: list[memoryview]) -> None:
        pending = list(views)
        while pending:
            count = self._socket.recvmsg_into(pending)[0]
            while pending and count >= pending[0].nbytes:
                count -= pending.pop(0).nbytes
            if count:
                pending[0] = pending[0][count:]

    async def close(self) -> None:
        self._socket.close()
        self._secured.close()
        for transport in self.transports.values():
            await transport.close()


async def _rate(case: PullCase, contender: Contender) -> float:
    """From the median of single pulls: what others do to a busy machine meanwhile is in few of them."""
    taken = []
    for _ in range(case.repeats):
        started = time.perf_counter()
        await contender()
        taken.append(time.perf_counter() - started)
    return case.size * case.pieces / statistics.median(taken) / 1e9


async def _rounds(case: PullCase, contenders: dict[str, Contender], raw: RawNixl | None) -> dict[str, list[float]]:
    if raw is not None:
        contenders = {"nixl": raw.pull, "nixl prepared": raw.prepared, **contenders}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(ROUNDS + 1):
        # Forth and back, so that what one leaves in the caches is to nobody's advantage.
        order = list(contenders.items())
        for name, contender in order if number % 2 else reversed(order):
            if raw is not None and name.startswith("nixl"):
                raw.poll()
            rate = await _rate(case, contender)
            if raw is not None and name.startswith("nixl"):
                raw.rest()
            if number:  # The first round touches every page once.
                rates[name].append(rate)
    return rates


async def _measure(case: PullCase) -> list[PullRow]:
    holder_pipe, holder = _start(_holder, case)
    bare_pipe, bare = _start(_bare_sender, case)
    secured_pipe, secured = _start(_secured_sender, case)
    addresses, names = holder_pipe.recv()
    receiver = Receiver(case, addresses, names, bare_pipe.recv(), secured_pipe.recv())
    contenders: dict[str, Contender] = {
        "memcpy": receiver.memcpy,
        "shm": lambda: receiver.pull("shm"),
        "bare": receiver.bare,
        "tcp": lambda: receiver.pull("tcp"),
        "bare tls": receiver.bare_secured,
        "tls": lambda: receiver.pull("tls"),
        "memcpy+digest": lambda: receiver.memcpy(True),
        "shm+digest": lambda: receiver.fetch("shm"),
        "bare+digest": lambda: receiver.bare(True),
        "tcp+digest": lambda: receiver.fetch("tcp"),
        "bare tls+digest": lambda: receiver.bare_secured(True),
        "tls+digest": lambda: receiver.fetch("tls"),
    }
    raw = _raw_nixl(case) if case.nixl_limit is not None and transfer_nixl.available() else None
    try:
        rates = await _rounds(case, contenders, raw)
    finally:
        if raw is not None:
            raw.close()
        await receiver.close()
        holder_pipe.send("stop")
        holder.join()
        bare.join()
        secured.join()
    pairs = (
        ("shm pull / memcpy", "shm", "memcpy"),
        ("tcp pull / bare socket loop", "tcp", "bare"),
        ("tls pull / bare TLS loop", "tls", "bare tls"),
        ("tls pull / plain tcp pull", "tls", "tcp"),
        ("shm verified / copy, digest", "shm+digest", "memcpy+digest"),
        ("tcp verified / bare loop, digest", "tcp+digest", "bare+digest"),
        ("tls verified / bare TLS loop, digest", "tls+digest", "bare tls+digest"),
    )
    rows = [
        _row(label, rates[ours], rates[reference], None if reference == "tcp" else case.limit)
        for label, ours, reference in pairs
    ]
    if raw is not None:
        rows.append(_row("shm pull / raw nixl, polling", rates["shm"], rates["nixl"], case.nixl_limit))
        rows.append(_row("shm verified / raw nixl, polling", rates["shm+digest"], rates["nixl"], None))
        rows.append(_row("shm pull / raw nixl, prepared", rates["shm"], rates["nixl prepared"], None))
    return rows


def _raw_nixl(case: PullCase) -> RawNixl:
    pipe, _ = _start(_nixl_holder, case)
    return RawNixl(case.size, case.pieces, pipe)


def _nixl_holder(case: PullCase, pipe: Connection) -> None:
    transfer_nixl.hold(case.size, case.pieces, pipe)


def _row(name: str, ours: list[float], reference: list[float], limit: float | None) -> PullRow:
    ratios = [mine / theirs for mine, theirs in zip(ours, reference, strict=True)]
    return PullRow(name, statistics.median(ours), statistics.median(reference), ratios, limit)


def _start(
    target: Callable[[PullCase, Connection], None], case: PullCase
) -> tuple[Connection, multiprocessing.Process]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(case, there), daemon=True)
    process.start()
    return here, process  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, metavar="TREE", help="compare with another revision's tree")
    parser.add_argument("--small", action="store_true", help="only the small pieces")
    arguments = parser.parse_args()
    # Made here, so that the other processes find the same.
    shared_certificates()
    if arguments.before is not None:
        compare(arguments.before)
        return 0
    unmet = []
    for case in CASES[1:] if arguments.small else CASES:
        print(f"\n{case.label + ' scattered':<38}{'GB/s':>8}{'limit':>10}{'ratio: min median max':>23}")
        for row in asyncio.run(_measure(case)):
            print(row.text())
            unmet += [] if row.met else [f"{case.label}: {row.name}"]
    print(f"\nNOT MET: {'; '.join(unmet)}" if unmet else "\nMET: every limit of KV transfer")
    return 1 if unmet else 0


if __name__ == "__main__":
    sys.exit(main())
