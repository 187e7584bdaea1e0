"""`tandem.link.protocol.Dialer` over TCP: the router's end of the links `tandem.link.tcp_server` accepts."""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any

from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.messages import PROTOCOL_VERSION, RouterMessage, StateRequest, StateUpdate, WorkerCommand
from tandem.link.address import LinkAddress, parse_address
from tandem.link.messages import COMMANDS, ROUTER_MESSAGES, STATE_REQUESTS, STATE_UPDATES
from tandem.link.proof import NONCE_BYTES, LinkKeys, both
from tandem.link.protocol import RouterLink
from tandem.link.queue import LinkLimits
from tandem.link.tcp_channel import TcpChannel, TcpLink
from tandem.link.tcp_frames import (
    CHALLENGE,
    Answer,
    Challenge,
    Greeting,
    Streams,
    Welcome,
    pack_greeting,
    read_greeting,
)
from tandem.link.tcp_stream import TcpStream

RouterEnd = TcpLink[WorkerCommand, RouterMessage, StateRequest, StateUpdate]


class TcpDialer:
    """`name` is how workers know this router; `context` (`tandem.process.tls`) makes the links TLS; with `keys` both
    ends prove that they hold the same one."""

    def __init__(
        self,
        name: str,
        entropy: Entropy,
        limits: LinkLimits | None = None,
        context: ssl.SSLContext | None = None,
        protocol: int = PROTOCOL_VERSION,
        keys: LinkKeys | None = None,
    ) -> None:
        self._name = name
        self._entropy = entropy
        self._limits = limits or LinkLimits()
        self._context = context
        self._protocol = protocol
        self._keys = keys

    async def dial(self, address: str, timeout_s: float) -> RouterLink:
        """Connect both streams. Raises `link_lost`, also for a worker that does not prove our key,
        `protocol_mismatch` when the worker refuses our version, and `bad_setting` for an address that is none."""
        where = parse_address(address)
        link = _router_end(address, self._limits)
        pair = self._entropy.token(16).hex()
        connecting = [
            asyncio.ensure_future(self._connect(where, link.tokens, pair, "tokens")),
            asyncio.ensure_future(self._connect(where, link.state, pair, "state")),
        ]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*connecting)
        except TimeoutError:
            await _abandon(link, connecting)
            raise TandemError("link_lost", f"worker {address} did not answer within {timeout_s:g} s") from None
        except BaseException:
            await _abandon(link, connecting)
            raise
        return link

    async def _connect(self, where: LinkAddress, channel: TcpChannel[Any, Any], pair: str, name: Streams) -> None:
        nonce = b"" if self._keys is None else self._entropy.token(NONCE_BYTES)
        greeting = Greeting(self._protocol, pair, name, self._name, nonce)
        asking = _Asking(channel, str(where), greeting, self._keys)
        channel.stream.greeted_by(asking)
        loop = asyncio.get_running_loop()
        host = where.host if self._context is not None else None
        try:
            await loop.create_connection(
                lambda: channel.stream, where.host, where.port, ssl=self._context, server_hostname=host
            )
        except (OSError, UnicodeError) as error:
            raise TandemError("link_lost", f"worker {where} cannot be reached: {error}") from None
        channel.stream.write(pack_greeting(greeting))
        await asking.answered.wait()
        if asking.refusal is not None:
            raise asking.refusal


class _Asking:
    """`tandem.link.tcp_stream.StreamOwner` until the worker has answered."""

    def __init__(
        self, channel: TcpChannel[Any, Any], address: str, greeting: Greeting, keys: LinkKeys | None
    ) -> None:
        self._channel = channel
        self._address = address
        self._greeting = greeting
        self._keys = keys
        """The keys of which the worker must prove that it holds one; None once it has."""
        self.answered = asyncio.Event()
        self.refusal: TandemError | None = None

    def took(self, kind: int, body: memoryview) -> None:
        if self._keys is not None and kind == CHALLENGE:
            self._prove(self._keys, read_greeting(Challenge, kind, body))
            return
        welcome = read_greeting(Welcome, kind, body)
        if welcome.refused is None and self._keys is not None:
            self._untrusted("does not prove that it holds the ticket key of this router")
            return
        if welcome.refused is None:
            self._channel.stream.belongs_to(self._channel)
            self.answered.set()
        else:
            self._fail("protocol_mismatch", f"refused the link: {welcome.refused}")

    def _prove(self, keys: LinkKeys, challenge: Challenge) -> None:
        greeting = self._greeting
        router, worker = both(greeting.link, greeting.stream, greeting.nonce, challenge.nonce)
        try:
            proof = keys.answer(worker, challenge.proof, router)
        except TandemError as error:
            self._untrusted(f"is refused: {error.message}")
            return
        self._keys = None
        self._channel.stream.write(pack_greeting(Answer(proof)))

    def _untrusted(self, what: str) -> None:
        self._fail("link_lost", what)
        self._channel.stream.abort()

    def writable(self) -> None:
        return None

    def ended(self, reason: str) -> None:
        self._fail("link_lost", reason)

    def _fail(self, code: str, what: str) -> None:
        if self.refusal is None:
            self.refusal = TandemError(code, f"worker {self._address} {what}")
            self.answered.set()


async def _abandon(link: RouterEnd, connecting: "Sequence[asyncio.Future[None]]") -> None:
    for one in connecting:
        one.cancel()
    await asyncio.gather(*connecting, return_exceptions=True)
    link.lost("it was never open")


def _router_end(peer: str, limits: LinkLimits) -> RouterEnd:
    return TcpLink(
        peer,
        TcpChannel(TcpStream(), COMMANDS.encode, ROUTER_MESSAGES.decode, limits),
        TcpChannel(TcpStream(), STATE_REQUESTS.encode, STATE_UPDATES.decode, limits),
        limits,
    )
