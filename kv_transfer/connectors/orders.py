"""What the scheduler side of the connector tells its workers in a step. Plain data: it is pickled to them."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PageTarget:
    """Prompt block `index`: the engine's block `block` and the stage's slot."""

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
    """Copy the engine's blocks of a work to slots when the step is over."""

    work: int
    targets: tuple[PageTarget, ...]


@dataclass(frozen=True)
class StepOrders:
    """Everything a worker is told in one step.

    `blank` are engine blocks whose pages are zeroed before it, because the unused end of a tail would otherwise carry
    what was in them before. `idle`: nothing is computed in the step.
    """

    loads: tuple[LoadOrder, ...] = ()
    saves: tuple[SaveOrder, ...] = ()
    blank: tuple[int, ...] = ()
    tracked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Requests that are new in this step, by id: their work and sequence."""
    idle: bool = False
