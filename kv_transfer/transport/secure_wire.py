"""`kv_transfer.transport.wire.Wire` over TLS.

Bytes are decrypted straight into the caller's memory, a record (16 KiB) at a time, and encrypted straight from it.
OpenSSL works without the interpreter's lock. Both ends present a certificate. Every frame states its length, so a
truncated stream is noticed whether or not its end was announced.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Generator, Sequence
from typing import Final

from kv_transfer.transport.wire import Got, Wire, WireLost

_RECORD_BYTES: Final = 16 << 10
_GATHERED_BYTES: Final = 64 << 10
"""Pieces smaller than a record are copied together up to this size: a record of its own costs more than the copy."""
_WRITE_BYTES: Final = 256 << 10
"""Encrypted by one call, during which the event loop waits."""
_TURN_BYTES: Final = 1 << 20
"""Number of bytes after which other work on the event loop gets its turn."""
_NAME_CODES: Final = (62, 63, 64)
_NO_TLS: Final = (
    "wrong version number",
    "unknown protocol",
    "http request",
    "packet length too long",
    "record layer failure",
)


class TlsRefused(WireLost):
    """No encrypted connection is possible between the two peers. `reason` is a short word for metrics."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class SecureWire(Wire):
    """A wire over TLS, which takes a connected socket and owns it. `server_name` is None at the server's end.

    Await `opened` before anything else. `refused` is called with the reason why there is no encrypted connection.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        stall_s: float,
        context: ssl.SSLContext,
        server_name: str | None,
        refused: Callable[[TlsRefused], None],
    ) -> None:
        super().__init__(sock, peer, stall_s)
        self._context = context
        self._server_name = server_name
        self._refused = refused
        self._tls: ssl.SSLSocket | None = None
        self._turn = 0

    async def opened(self, within_s: float) -> None:
        """Shake hands. Raises `TlsRefused`, and `WireLost` when that takes longer or the peer is gone."""
        try:
            async with asyncio.timeout(within_s):
                await self._shake_hands()
        except TimeoutError:
            raise WireLost(
                f"the KV peer {self.peer} did not finish a TLS handshake within {within_s:.1f} s"
            ) from None
        except ssl.SSLError as error:
            raise self._refusal(error) from error
        except OSError as error:
            raise self._lost(error) from error

    async def _shake_hands(self) -> None:
        name, server = self._server_name, self._server_name is None
        self._tls = self._context.wrap_socket(
            self.socket, server, do_handshake_on_connect=False, server_hostname=name
        )
        self.socket = self._tls
        while True:
            try:
                self._tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self._wait("read", self._stall_s)
            except ssl.SSLWantWriteError:
                await self._wait("write", self._stall_s)

    def quiet(self) -> bool:
        return self._tls is not None and not self.closed and super().quiet()

    def send_now(self, buffers: Sequence[memoryview]) -> Sequence[memoryview]:
        return buffers  # What is encrypted by halves would have to be offered again as it was.

    async def send(self, buffers: Sequence[memoryview]) -> None:
        tls = self._open()
        for piece in _pieces(buffers):
            while True:
                try:
                    tls.send(piece)
                    break
                except ssl.SSLWantWriteError:
                    # What is encrypted already goes first: the same piece has to be offered again.
                    await self._wait("write", self._stall_s)
                except OSError as error:
                    raise self._lost(error) from error
            await self._take_turns(piece.nbytes)

    async def _read(self, attempt: Callable[[], Got], wait_s: float | None) -> Got:
        self._open()
        got = await super()._read(attempt, wait_s)
        await self._take_turns(got if isinstance(got, int) else len(got))
        return got

    def _buffered(self) -> bool:
        return super()._buffered() or (self._tls is not None and not self.closed and self._tls.pending() > 0)

    def _some(self) -> bytes:
        try:
            return super()._some()
        except ssl.SSLWantReadError as error:
            raise BlockingIOError from error

    def _receive(self, pending: list[memoryview]) -> int:
        try:
            return self.socket.recv_into(pending[0])
        except ssl.SSLWantReadError as error:
            raise BlockingIOError from error

    async def _take_turns(self, count: int) -> None:
        self._turn += count
        if self._turn >= _TURN_BYTES:
            self._turn = 0
            await asyncio.sleep(0)

    def _open(self) -> ssl.SSLSocket:
        if self._tls is None or self.closed:
            raise WireLost(f"the KV connection to {self.peer} was closed here")
        return self._tls

    def _lost(self, error: OSError) -> WireLost:
        # A server looks at the certificate of its client after the client is done: it refuses in the first answer.
        return self._refusal(error) if isinstance(error, ssl.SSLError) else super()._lost(error)

    def _refusal(self, error: ssl.SSLError) -> WireLost:
        reason, why = explained(error)
        if not reason:
            return WireLost(f"the KV connection to {self.peer} broke: {why}")
        refusal = TlsRefused(f"no encrypted KV connection to {self.peer}: {why}", reason)
        self._refused(refusal)
        return refusal


def explained(error: ssl.SSLError) -> tuple[str, str]:
    """A short word for metrics, empty where the connection ended without a reason, and a sentence's end."""
    if isinstance(error, ssl.SSLCertVerificationError):
        # OpenSSL numbers what is wrong with names 62 to 64; the rest is about who has signed, and when.
        reason = "name" if error.verify_code in _NAME_CODES else "certificate"
        return reason, f"its certificate is not the one expected: {error.verify_message.rstrip('.')}"
    what = (error.reason or "").lower().replace("_", " ")
    if isinstance(error, ssl.SSLEOFError) or "unexpected eof" in what:
        return "", "the stream was cut off"
    if what in _NO_TLS:
        return "plain_text", "it does not speak TLS"
    if "alert" in what:
        return "refused_by_peer", f"it does not accept our certificate ({what})"
    if "peer did not return a certificate" in what:
        return "certificate", "it showed no certificate"
    return "protocol", what or str(error)


def _pieces(buffers: Sequence[memoryview]) -> Generator[memoryview, None, None]:
    """`buffers` as they are best encrypted: what is small together, what is large cut."""
    gathered = bytearray()
    for buffer in buffers:
        if buffer.nbytes < _RECORD_BYTES:
            gathered += buffer
            if len(gathered) < _GATHERED_BYTES:
                continue
        if gathered:
            yield memoryview(gathered)
            gathered = bytearray()
        if buffer.nbytes >= _RECORD_BYTES:
            for start in range(0, buffer.nbytes, _WRITE_BYTES):
                yield buffer[start : start + _WRITE_BYTES]
    if gathered:
        yield memoryview(gathered)
