"""Both ends of KV transfer on one worker. A prefill worker lets others pull, a decode worker pulls, and each does
both to itself while it proves that it can."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from kv_transfer.export import Exporter, ExportSettings
from kv_transfer.fetch import Fetcher, FetchSettings
from kv_transfer.tickets import Keyring
from kv_transfer.tiers.protocol import Tiers
from kv_transfer.transport.protocol import Transport
from tandem.core.errors import TandemError
from tandem.engine.protocol import BlockSpace
from tandem.worker.deps import KvFetcher, WorkerDeps


class KvSide(Protocol):
    """A worker's part in KV transfer, as its service sees it."""

    async def open(self, space: BlockSpace, tiers: Tiers | None = None) -> None:
        """The engine has loaded. Raises `bad_setting` when no transport can be served."""
        ...

    @property
    def served(self) -> Mapping[str, str]:
        """The addresses at which this worker's blocks can be pulled now, by transport, in order of preference."""
        ...

    @property
    def failed(self) -> Mapping[str, TandemError]:
        """Transports that could not be served, and why."""
        ...

    @property
    def keyring(self) -> Keyring:
        """Signs tickets for pulls from this worker."""
        ...

    @property
    def fetcher(self) -> KvFetcher | None:
        """The fetcher that brings blocks, once open."""
        ...

    async def settle(self, broken: Collection[str]) -> tuple[str, ...]:
        """The canary is over: do without the `broken` transports. Gives the addresses to hand out."""
        ...

    async def close(self) -> None: ...


class TransportSide:
    """`KvSide` over transports in order of preference. With `exports` others may pull from here; without, serving
    ends with the canary."""

    def __init__(
        self,
        parts: WorkerDeps,
        transports: Sequence[Transport],
        keyring: Keyring,
        *,
        exports: bool,
        export_settings: ExportSettings | None = None,
        fetch_settings: FetchSettings | None = None,
    ) -> None:
        self._parts = parts
        self._transports = {transport.scheme: transport for transport in transports}
        self._exports = exports
        self._export_settings = export_settings
        self._fetch_settings = fetch_settings or FetchSettings(node=parts.node)
        self._served: dict[str, str] = {}
        self._failed: dict[str, TandemError] = {}
        self._fetcher: Fetcher | None = None
        self.keyring = keyring

    @property
    def served(self) -> Mapping[str, str]:
        return MappingProxyType(self._served)

    @property
    def failed(self) -> Mapping[str, TandemError]:
        return MappingProxyType(self._failed)

    @property
    def fetcher(self) -> KvFetcher | None:
        return self._fetcher

    async def open(self, space: BlockSpace, tiers: Tiers | None = None) -> None:
        """Serve over every transport; one that cannot be served is left to `failed` while another can."""
        parts = self._parts
        exporter = Exporter(space, self.keyring, parts.clock, parts.deadlines, self._export_settings, tiers)
        transports, hashing = tuple(self._transports.values()), parts.open_hashing(space.layout)
        self._fetcher = Fetcher(
            space, transports, parts.clock, parts.deadlines, parts.meter, self._fetch_settings, tiers, hashing
        )
        for scheme, transport in self._transports.items():
            try:
                self._served[scheme] = await transport.serve(exporter)
            except TandemError as error:
                self._failed[scheme] = error
        if self._failed and not self._served:
            raise next(iter(self._failed.values()))

    async def settle(self, broken: Collection[str]) -> tuple[str, ...]:
        for scheme in tuple(self._served):
            if scheme in broken or not self._exports:
                del self._served[scheme]
                await self._transports[scheme].withdraw()
        return tuple(self._served.values())

    async def close(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()
        for transport in self._transports.values():
            await transport.close()
