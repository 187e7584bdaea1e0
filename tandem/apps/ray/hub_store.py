"""What outlives the hub's process: its objects, its key, and the epoch by which one hub at a time acts."""

import asyncio
from typing import Final, Protocol

import msgspec

from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.kube.memory_cluster import MemoryCluster

STATE: Final = "tandem:hub:state"
EPOCH: Final = "tandem:hub:epoch"
_KEY_BYTES: Final = 32
_UNREADABLE: Final = (
    "It is left as it is, and workers and routers go on: install the version of Tandem that has kept it on the head,"
    " or end the Ray cluster, with which it goes"
)
_GANGS_MAX: Final = 256


class HubStore(Protocol):
    """Keeps values by key beyond the process. A call may raise `link_lost`; a value is written whole or not at
    all."""

    async def get(self, key: str) -> bytes | None:
        """The value; None where there is none."""
        ...

    async def put(self, key: str, value: bytes) -> None: ...


class HubState(msgspec.Struct):
    """Everything that is kept, as one value."""

    cluster: bytes = b""
    """`MemoryCluster.dump`; empty before the first."""
    key: str = ""
    """The ticket key of all routers and workers, in hexadecimal digits."""
    gangs: dict[str, str] = {}
    """The address of rank 0 by gang."""
    started_serve: bool = False
    """Whether Serve was started for Tandem, so that it may be shut down with it."""
    routers_seen: bool = False
    """Whether the application of routers has been there: then it is missed when it is gone."""


class StateKeeper:
    """Restores a cluster and keeps it, under an epoch that every hub raises when it starts. A hub whose epoch is not
    the newest may write nothing."""

    def __init__(self, store: HubStore, cluster: MemoryCluster, entropy: Entropy) -> None:
        self.epoch = 0
        self.state = HubState()
        self.superseded = False
        self._store = store
        self._cluster = cluster
        self._entropy = entropy
        self._kept: int | None = None
        """The cluster's count of writes when it was kept last."""
        self._saving = asyncio.Lock()

    async def open(self) -> None:
        """Raise the epoch, restore what was kept, and keep it. Raises `link_lost`, and `bad_setting` for a state that
        cannot be read."""
        self.epoch = await self._newest() + 1
        await self._store.put(EPOCH, str(self.epoch).encode())
        kept = await self._store.get(STATE)
        if kept is not None:
            try:
                self.state = msgspec.msgpack.decode(kept, type=HubState)
                if self.state.cluster:
                    self._cluster.restore(self.state.cluster)
            except (msgspec.DecodeError, TandemError) as error:
                raise TandemError("bad_setting", f"the hub's state cannot be read: {error}. {_UNREADABLE}") from error
        if not self.state.key:
            self.state.key = self._entropy.token(_KEY_BYTES).hex()
        # Versions have jumped: nobody may see them before they are kept.
        await self.save()

    def touch(self) -> None:
        """Something besides the cluster has changed."""
        self._kept = None

    def meet(self, gang: str, address: str) -> None:
        """Note the address of a gang's rank 0; the oldest are forgotten."""
        if self.state.gangs.get(gang) == address:
            return
        self.state.gangs[gang] = address
        while len(self.state.gangs) > _GANGS_MAX:
            del self.state.gangs[next(iter(self.state.gangs))]
        self.touch()

    async def check(self) -> None:
        """Raises `stale_epoch` where a younger hub acts, and `link_lost`."""
        if await self._newest() != self.epoch:
            self.superseded = True
        if self.superseded:
            raise TandemError("stale_epoch", f"this hub has epoch {self.epoch}, and a younger one acts")

    async def save(self) -> None:
        """Keep what has changed. Raises as `check` does."""
        async with self._saving:
            await self.check()
            writes = self._cluster.writes
            if writes == self._kept:
                return
            # Written at once: what changes meanwhile is kept next time.
            self._kept = writes
            self.state.cluster = self._cluster.dump()
            try:
                await self._store.put(STATE, msgspec.msgpack.encode(self.state))
            except BaseException:
                self._kept = None
                raise

    async def _newest(self) -> int:
        """The epoch of the youngest hub; 0 before the first."""
        kept = await self._store.get(EPOCH)
        try:
            return 0 if kept is None else int(kept)
        except ValueError as error:
            raise TandemError("bad_setting", f"the hub's epoch cannot be read: {error}. {_UNREADABLE}") from error
