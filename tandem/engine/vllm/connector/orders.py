"""The orders that the scheduler side of the connector gives its workers in a step. Plain data: it is pickled to
them."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PageTarget:
    """Block `index` of a request: the engine's block `block` and the stage's slot."""

    index: int
    slot: int
    block: int


@dataclass(frozen=True)
class LoadOrder:
    """Fill the engine's blocks of a request from slots as these become complete, then report the request.

    `cached` leading tokens were found in the engine's own cache, `loading` are awaited. `whole`: the blocks that
    came mean nothing to the engine when others of the request did not come.
    """

    request_id: str
    work: int
    sequence: int
    targets: tuple[PageTarget, ...]
    first: bool
    cached: int = 0
    loading: int = 0
    whole: bool = False


@dataclass(frozen=True)
class SaveOrder:
    """An order to copy the engine's blocks of a request to slots, after what the step computes."""

    request_id: str
    work: int
    targets: tuple[PageTarget, ...]


@dataclass(frozen=True)
class OutputOrder:
    """Offer the full blocks of a request that is over to the stage, which has them copied where it has slots to
    spare. `names[i]` is the name of the engine's block `blocks[i]`."""

    request_id: str
    work: int
    sequence: int
    names: tuple[bytes, ...]
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class StepOrders:
    """All orders that a worker receives for one step.

    `blank` are engine blocks whose pages are zeroed before the step, because the unused end of a tail would otherwise
    carry what was in them before. `held` are requests that are over and whose blocks the engine keeps until the
    worker reports that nothing copies from them any more. `fence`: blocks that may still be copied from have new
    owners, so the step computes nothing before the saves that were begun are over. `decoding`: some of the requests
    in the step generate. `idle`: the step computes nothing.
    """

    loads: tuple[LoadOrder, ...] = ()
    saves: tuple[SaveOrder, ...] = ()
    blank: tuple[int, ...] = ()
    tracked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Requests that are new in this step, by id: their work and sequence."""
    outputs: tuple[OutputOrder, ...] = ()
    held: tuple[str, ...] = ()
    fence: bool = False
    decoding: bool = False
    idle: bool = False

    @property
    def asks(self) -> bool:
        """Whether a worker has something to do after the step has been computed."""
        return bool(self.tracked or self.saves or self.loads or self.outputs or self.held)
