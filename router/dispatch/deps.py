"""The dependencies that every running request uses, and what a request needs of the dispatcher."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from kv_transfer.tickets import Keyring
from router.alarms import Alarms
from router.fleet.orphaned_holders import OrphanedHolder
from router.fleet.peer import Peer
from router.placement import CostModel, Unplaced
from router.settings import RouterSettings, SplitSettings
from router.split.plan import Planner
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.metrics import Meter
from tandem.core.spans import Recorder

Request = TypeVar("Request", contravariant=True)


@dataclass(frozen=True)
class DispatchDeps:
    """Shared by all requests of a router."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    entropy: Entropy
    keyring: Keyring
    """Signs what routers alone read."""
    settings: RouterSettings
    costs: CostModel
    recorder: Recorder
    meter: Meter
    planner: Callable[[SplitSettings], Planner] = Planner
    """Makes the planner that decides which workers of role `auto` take prompts for others, a new one for each
    service."""
    signing: Callable[[str], Keyring] | None = None
    """The keys that sign tickets for the workers of a model; by default `keyring`."""
    alarms: Alarms = field(init=False)
    """The alarms on which all requests set their timers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "alarms", Alarms(self.loop, self.clock))

    def ticket_keys(self, model: str) -> Keyring:
        """The keys that sign tickets for the workers of a model."""
        return self.keyring if self.signing is None else self.signing(model)


class Host(Protocol[Request]):
    """The dispatcher, as a request sees it."""

    def place_again(self, request: Request) -> None:
        """Begin another attempt: now, at the request's `retry_at`, or when a worker appears."""
        ...

    def place_beside(self, request: Request, avoid: tuple[str, int]) -> bool:
        """Begin a second attempt of a running request, not with the worker `avoid` (id, epoch), if some other can
        take it and the budget of retries allows."""
        ...

    def may_retry(self) -> bool:
        """Take one retry from the budget of all requests."""
        ...

    def freed(self) -> None:
        """Some worker may have room again."""
        ...

    def obstacle(self, request: Request) -> Unplaced | None:
        """Why the request cannot be placed now; None when it could be, were it not for others before it."""
        ...

    def peer(self, worker_id: str, model: str) -> Peer | OrphanedHolder | None:
        """The live incarnation of a worker, or a holder that is known without a link to requests for a model."""
        ...

    def holders(self, name: bytes) -> Collection[str]:
        """Ids of the live workers that have a block."""
        ...

    def queue_s(self, model: str) -> float:
        """Seconds that a request may wait for its first worker."""
        ...

    def left_revision(self, request: Request, revision: str) -> None:
        """Note that no worker of the revision on which the request has begun is left, and that it goes on with
        another revision."""
        ...

    def retry_after_s(self, model: str) -> float:
        """Seconds after which a refused client should try again."""
        ...

    def over(self, request: Request) -> None:
        """The request has ended; its handles may stay open a little for late reports."""
        ...

    def forgotten(self, request: Request) -> None:
        """Note that no handle of the request is left."""
        ...
