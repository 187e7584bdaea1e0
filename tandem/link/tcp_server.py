"""`tandem.link.protocol.LinkServer` over TCP.

A link is two connections, one per stream, so that neither waits for the other: a snapshot of block names may fill its
connection for as long as the router takes to read it, while tokens have buffers and flow control of their own in
the kernel. `tandem.link.tcp_frames` describes the bytes, `tandem.link.messages` the messages in them. With
certificates both connections are TLS and both ends show theirs; with `keys` both ends prove that they hold the same
one (`tandem.link.proof`). Liveness is not a link's business: heartbeats are
messages.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from secrets import token_bytes
from typing import Final

from tandem.core.errors import TandemError
from tandem.core.messages import PROTOCOL_VERSION, RouterMessage, StateRequest, StateUpdate, WorkerCommand
from tandem.link.address import LinkAddress, split_host
from tandem.link.messages import COMMANDS, ROUTER_MESSAGES, STATE_REQUESTS, STATE_UPDATES
from tandem.link.proof import NONCE_BYTES, LinkKeys, both
from tandem.link.protocol import WorkerLink
from tandem.link.queue import LinkLimits
from tandem.link.tcp_channel import TcpChannel, TcpLink
from tandem.link.tcp_frames import Answer, Challenge, Greeting, Welcome, pack_greeting, read_greeting
from tandem.link.tcp_stream import TcpStream
from tandem.process.listening import bound
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
ARRIVING_MAX: Final = 256
"""Connections that have not become a link yet; further ones are closed at once."""

WorkerEnd = TcpLink[RouterMessage, WorkerCommand, StateUpdate, StateRequest]


class TcpLinkServer:
    """`bind` is `host:port`; port 0 takes a free one. `advertise` is the host handed out, when it is not the one
    bound to. A connection that has not become half of a link within `pair_s` is closed."""

    def __init__(
        self,
        bind: str,
        limits: LinkLimits | None = None,
        context: ssl.SSLContext | None = None,
        pair_s: float = 5.0,
        protocol: int = PROTOCOL_VERSION,
        advertise: str | None = None,
        keys: LinkKeys | None = None,
    ) -> None:
        self._bind = bind
        self._limits = limits or LinkLimits()
        self._context = context
        self._pair_s = pair_s
        self._protocol = protocol
        self._advertise = advertise
        self.keys = keys
        self._server: asyncio.Server | None = None
        self._accept: Callable[[WorkerLink], Awaitable[None]] | None = None
        self._arriving: dict[PendingConnection, None] = {}
        self._waiting: dict[str, PendingConnection] = {}
        self._links: dict[asyncio.Task[None], WorkerEnd] = {}

    async def start(self, accept: Callable[[WorkerLink], Awaitable[None]]) -> str:
        """Listen. Raises `bad_setting` when the address cannot be bound."""
        assert self._server is None, "a link server starts once"
        self._accept = accept
        listener = _listen(self._bind)
        timeout_s = None if self._context is None else self._pair_s
        self._server = await asyncio.get_running_loop().create_server(
            self._connected,
            sock=listener,
            backlog=_BACKLOG,
            ssl=self._context,
            ssl_handshake_timeout=timeout_s,
            ssl_shutdown_timeout=timeout_s,
        )
        host = split_host(self._bind)[0]
        return str(LinkAddress(self._advertise or host, listener.getsockname()[1]))

    async def stop(self) -> None:
        """Close every link, deliver what was sent before, and stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for arriving in list(self._arriving):
            arriving.stream.abort()
        for link in list(self._links.values()):
            link.close("the worker stopped")
        if self._links:
            await asyncio.wait(list(self._links), timeout=2 * self._limits.flush_s)
        late = list(self._links)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    # ---- connections on their way to become a link ----

    def _connected(self) -> TcpStream:
        stream = TcpStream()
        arriving = PendingConnection(self, stream)
        stream.greeted_by(arriving)
        self._arriving[arriving] = None
        arriving.wait(self._pair_s if len(self._arriving) <= ARRIVING_MAX else 0.0)
        return stream

    def speaks(self, arriving: "PendingConnection", greeting: Greeting) -> bool:
        """Whether a connection speaks our protocol version or a neighbouring one; otherwise it is refused with the
        reason."""
        if abs(greeting.protocol - self._protocol) <= 1:
            return True
        self._refuse(
            arriving,
            f"the router speaks protocol {greeting.protocol}, this worker {self._protocol}; "
            "only neighbouring versions work together",
        )
        return False

    def keyless(self, arriving: "PendingConnection") -> None:
        """A connection offers no proof where one is asked for."""
        self._refuse(arriving, "this worker has a ticket key and the router shows none; give it ticket_key_file")

    def greeted(self, arriving: "PendingConnection", greeting: Greeting) -> None:
        """Take a connection that has sent its greeting and its proof. Raises `link_lost` for a stream that is there
        already."""
        other = self._waiting.pop(greeting.link, None)
        if other is None:
            self._waiting[greeting.link] = arriving
        elif other.greeting is not None and other.greeting.stream != greeting.stream:
            self._open(*((arriving, other) if greeting.stream == "tokens" else (other, arriving)), greeting.router)
        else:
            other.stream.abort()
            raise TandemError("link_lost", f"the {greeting.stream} stream of this link is there already")

    def left(self, arriving: "PendingConnection", reason: str) -> None:
        """A connection has ended before it became part of a link."""
        self._forget(arriving)
        event(_log, "link_refused", level=logging.WARNING, reason=reason)

    def _refuse(self, arriving: "PendingConnection", why: str) -> None:
        arriving.refusal = why
        arriving.stream.write(pack_greeting(Welcome(self._protocol, why)))
        arriving.stream.close()

    def _open(self, tokens: "PendingConnection", state: "PendingConnection", router: str) -> None:
        link = _worker_end(router, tokens.stream, state.stream, self._limits)
        for arriving, channel in ((tokens, link.tokens), (state, link.state)):
            self._forget(arriving)
            arriving.stream.belongs_to(channel)
            arriving.stream.write(pack_greeting(Welcome(self._protocol)))
        task = asyncio.get_running_loop().create_task(self._serve(link), name=f"accept {link.peer}")
        self._links[task] = link
        task.add_done_callback(self._links.pop)

    async def _serve(self, link: WorkerEnd) -> None:
        assert self._accept is not None
        try:
            await self._accept(link)
        finally:
            link.close("the worker ended the link")
        await link.over.wait()

    def _forget(self, arriving: "PendingConnection") -> None:
        arriving.stop_waiting()
        self._arriving.pop(arriving, None)
        if arriving.greeting is not None and self._waiting.get(arriving.greeting.link) is arriving:
            del self._waiting[arriving.greeting.link]


class PendingConnection:
    """`tandem.link.tcp_stream.StreamOwner` of a connection until it is half of a link."""

    def __init__(self, server: TcpLinkServer, stream: TcpStream) -> None:
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self.stream = stream
        self.refusal: str | None = None
        self.greeting: Greeting | None = None
        """The connection's greeting, once it has arrived and, where a proof is required, has been proved."""
        self._unproved: tuple[Greeting, bytes] | None = None
        """A greeting, and the nonce that the router's proof has to cover."""

    def wait(self, within_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(within_s, self._too_late)

    def stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def took(self, kind: int, body: memoryview) -> None:
        if self.refusal is not None:
            return
        if self.greeting is not None:
            raise TandemError("link_lost", "something came before the greeting was answered")
        keys = self._server.keys
        if self._unproved is not None:
            assert keys is not None
            greeting, nonce = self._unproved
            router, worker = both(greeting.link, greeting.stream, greeting.nonce, nonce)
            answer = read_greeting(Answer, kind, body)
            try:
                keys.answer(router, answer.proof, worker)
            except TandemError as error:
                self.refusal = error.message
                self.stream.abort()
                return
        else:
            greeting = read_greeting(Greeting, kind, body)
            if not self._server.speaks(self, greeting):
                return
            if keys is not None:
                self._challenge(keys, greeting)
                return
        self.greeting = greeting
        self._server.greeted(self, greeting)

    def _challenge(self, keys: LinkKeys, greeting: Greeting) -> None:
        if not greeting.nonce:
            self._server.keyless(self)
            return
        nonce = token_bytes(NONCE_BYTES)
        _, worker = both(greeting.link, greeting.stream, greeting.nonce, nonce)
        self._unproved = greeting, nonce
        self.stream.write(pack_greeting(Challenge(nonce, keys.prove(worker))))

    def writable(self) -> None:
        return None

    def ended(self, reason: str) -> None:
        self._server.left(self, self.refusal or f"somebody {reason}")

    def _too_late(self) -> None:
        self._timer = None
        self.refusal = "a connection did not become half of a link in time"
        never_began = not self.stream.connected
        self.stream.abort()
        if never_began:
            # Nobody hears of the end of one that never came out of its TLS handshake.
            self._server.left(self, self.refusal)


def _listen(bind: str) -> socket.socket:
    """A socket bound to one address; `[::]` takes IPv4 too. Raises `bad_setting`."""
    host, port = split_host(bind)
    if port is None:
        raise TandemError("bad_setting", f"link.bind {bind!r}: expected host:port", param="link.bind")
    try:
        return bound(host, port)
    except (OSError, UnicodeError) as error:
        problem = f"link.bind {bind!r}: the address cannot be bound: {error}"
        raise TandemError("bad_setting", problem, param="link.bind") from None


def _worker_end(peer: str, tokens: TcpStream, state: TcpStream, limits: LinkLimits) -> WorkerEnd:
    return TcpLink(
        peer,
        TcpChannel(tokens, ROUTER_MESSAGES.encode, COMMANDS.decode, limits),
        TcpChannel(state, STATE_UPDATES.encode, STATE_REQUESTS.decode, limits),
        limits,
    )
