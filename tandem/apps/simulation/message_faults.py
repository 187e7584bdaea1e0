"""Messages that come twice, and pulls of which one half gets lost: the question, an answer, the acknowledgement."""

from dataclasses import dataclass
from typing import Final

from tandem.apps.simulation.network import ACKNOWLEDGE, ANSWER, ASK, SimNetwork
from tandem.core.entropy import Entropy, below

_ROUTER: Final = "router"


@dataclass(frozen=True)
class Repeat:
    """The next `frames` frames of the link with this worker arrive twice: commands when `down`, outputs and state
    else."""

    at_s: float
    worker: str
    frames: int
    down: bool


@dataclass(frozen=True)
class Lose:
    """Of the next `count` messages of this kind with which a worker's blocks are pulled none arrives: `ask` to the
    holder, `answer` from it and all that follow, or `acknowledge`."""

    at_s: float
    holder: str
    what: str
    count: int


def draw_repeat(at_s: float, worker: str, entropy: Entropy) -> Repeat:
    return Repeat(at_s, worker, 20 + below(entropy, 200), below(entropy, 2) == 0)


def draw_loss(at_s: float, worker: str, entropy: Entropy) -> Lose:
    what = (ASK, ANSWER, ACKNOWLEDGE)[below(entropy, 3)]
    return Lose(at_s, worker, what, 1 + below(entropy, 3))


def repeat(fault: Repeat, network: SimNetwork) -> None:
    """Prepare it."""
    network.repeat((_ROUTER, fault.worker) if fault.down else (fault.worker, _ROUTER), fault.frames)


def lose(fault: Lose, network: SimNetwork) -> None:
    """Prepare it."""
    network.lose(fault.holder, fault.what, fault.count)
