"""Decides whether KV over TCP is encrypted, with what, and how peers that disagree are treated.

An address says what its holder speaks: `tcp://host:port/tls` is encrypted, `tcp://host:port` is not. Both ends have
to agree; a pull between two that do not is refused before any of its bytes is sent.
"""

import asyncio
import logging
import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from kv_transfer.transport.secure_wire import TlsRefused
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter, NullMeter
from tandem.process.logs import event
from tandem.process.tls import client_context, server_context
from tandem.process.tls_settings import TlsSettings

_log = logging.getLogger(__name__)

_MARK: Final = "/tls"
_TOLD_EVERY_S: Final = 30.0


@dataclass(frozen=True)
class Encryption:
    """Contexts for those who pull from us and for pulling from others, which read renewed files by themselves; None
    leaves everything in the clear, for `reason`."""

    serving: ssl.SSLContext | None = None
    dialing: ssl.SSLContext | None = None
    reason: str = "no certificates are set"

    @property
    def on(self) -> bool:
        return self.serving is not None


def encryption(mode: str, serving: TlsSettings, dialing: TlsSettings) -> Encryption:
    """The encryption that `mode` (`auto`, `on`, `off`) selects with these certificates. Raises `bad_setting`."""
    if mode == "off":
        return Encryption(reason="kv.tls is off")
    contexts = server_context(serving), client_context(dialing)
    if contexts[0] is not None and contexts[1] is not None:
        # Nobody resumes a session here: tickets would only be bytes that nobody has asked for.
        contexts[0].num_tickets = 0
        return Encryption(*contexts, reason="certificates are set")
    if mode == "on":
        raise TandemError("bad_setting", "kv.tls = 'on': it needs the certificates of links", param="kv.tls")
    return Encryption()


def marked(address: str, on: bool) -> str:
    """The address as it is handed out."""
    return address + _MARK if on else address


def agrees(address: str, ours: Encryption) -> None:
    """Raises `TlsRefused` where the holder at `address` and this process cannot understand each other."""
    theirs = urlsplit(address).path == _MARK
    if theirs and not ours.on:
        raise TlsRefused(f"{address} encrypts KV, this process does not: {ours.reason}", "plain_text_here")
    if ours.on and not theirs:
        raise TlsRefused(f"{address} does not encrypt KV, this process does: {ours.reason}", "plain_text")


@dataclass
class Refusals:
    """Counts them, and logs the first of a kind once in a while."""

    meter: Meter = field(default_factory=NullMeter)
    _told: dict[tuple[str, str], float] = field(default_factory=dict)

    def from_holder(self, refusal: TlsRefused) -> None:
        self._count(refusal, "receiver")

    def from_receiver(self, refusal: TlsRefused) -> None:
        self._count(refusal, "holder")

    def _count(self, refusal: TlsRefused, end: str) -> None:
        self.meter.add("tandem_kv_tls_refused_total", 1.0, end, refusal.reason)
        now, kind = asyncio.get_running_loop().time(), (end, refusal.reason)
        if now - self._told.get(kind, float("-inf")) >= _TOLD_EVERY_S:
            self._told[kind] = now
            event(_log, "kv_tls_refused", level=logging.WARNING, end=end, reason=refusal.message)
