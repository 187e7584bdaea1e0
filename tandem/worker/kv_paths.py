"""Open the transports of a process that serves KV, and log at start which of them are encrypted."""

import logging
import os
from typing import Final

from kv_transfer.transport.locked_memory import try_locking
from kv_transfer.transport.nixl import SCHEME as NIXL
from kv_transfer.transport.nixl import NixlSettings, NixlTransport
from kv_transfer.transport.nixl_preflight import expected
from kv_transfer.transport.protocol import Transport
from kv_transfer.transport.shm import ShmSettings, ShmTransport
from kv_transfer.transport.tcp import TcpSettings, TcpTransport
from kv_transfer.transport.tcp_tls import encryption
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.devices.reading import read_rdma
from tandem.process.logs import event
from tandem.process.system import SystemEntropy
from tandem.process.tls_settings import TlsSettings
from tandem.worker.process_settings import KvSettings

_log = logging.getLogger(__name__)

STORE_SCHEMES: Final = ("shm", "tcp")
WORKER_SCHEMES: Final = (*STORE_SCHEMES, NIXL)


class KvPaths:
    """Opens transports. `serving` are the certificates shown to those who pull from this process, `dialing` those
    shown where it pulls."""

    def __init__(
        self,
        who: str,
        kv: KvSettings,
        socket_directory: str | None,
        meter: Meter,
        serving: TlsSettings,
        dialing: TlsSettings,
    ) -> None:
        self._who = who
        self._kv = kv
        self._socket_directory = socket_directory
        self._meter = meter
        self._serving = serving
        self._dialing = dialing
        self.problems: tuple[str, ...] = ()
        """Why transports that were opened are slower than what they are for, one sentence each."""

    def open(self, schemes: tuple[str, ...]) -> tuple[Transport, ...]:
        """The transports of the settings, each of which has to be among `schemes`. Raises `bad_setting`."""
        for scheme in self._kv.transports:
            if scheme not in schemes:
                problem = f"kv.transports = {scheme!r}: expected {', '.join(schemes[:-1])} or {schemes[-1]}"
                raise TandemError("bad_setting", problem, param="kv.transports")
        makers = {"shm": self._shm, "tcp": self._tcp, NIXL: self._nixl}
        return tuple(makers[scheme]() for scheme in self._kv.transports)

    def _shm(self) -> Transport:
        kv = self._kv
        return ShmTransport(ShmSettings(kv.shm_directory or self._socket_directory, kv.node, kv.limits))

    def _tcp(self) -> Transport:
        kv = self._kv
        ours = encryption(kv.tls, self._serving, self._dialing)
        self._tell("tcp", ours.on, ours.reason, alarming=not ours.on and self._serving.certificate is not None)
        return TcpTransport(TcpSettings(kv.host, kv.port, kv.advertise, limits=kv.limits), ours, self._meter)

    def _nixl(self) -> Transport:
        """The NIXL transport over whatever fabric UCX has, which is logged at once, with the memory that it may
        lock."""
        kv = self._kv
        devices = read_rdma()
        usable = [each.name for each in devices if each.usable]
        locked = try_locking(kv.lock_probe) if kv.lock_probe else None
        fabric = expected(usable, os.environ, locked, [each.name for each in devices if not each.usable])
        memory = "not tried" if locked is None else locked.sentence
        self._tell(NIXL, False, fabric.reason, alarming=not fabric.fast, fabric=fabric.name, locked_memory=memory)
        if locked is not None:
            self._meter.set("tandem_kv_lockable_bytes", float(locked.got))
        self._meter.set("tandem_kv_rdma", float(fabric.fast))
        if not fabric.fast:
            self.problems = (*self.problems, f"{NIXL}: {fabric.reason}")
        name = f"{self._who}-{SystemEntropy().token(6).hex()}"
        return NixlTransport(NixlSettings(name, kv.host, kv.nixl_port, kv.advertise, fabric.name, kv.limits))

    def _tell(self, path: str, encrypted: bool, reason: str, *, alarming: bool, **more: str) -> None:
        level = logging.WARNING if alarming else logging.INFO
        event(
            _log, "kv_preflight", level=level, worker=self._who, path=path, encrypted=encrypted, reason=reason, **more
        )
