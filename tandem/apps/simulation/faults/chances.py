"""Draws that several kinds of faults have in common."""

from tandem.apps.simulation.names import ROUTER
from tandem.core.entropy import Entropy, below, unit


def short_or_long(entropy: Entropy) -> float:
    """Seconds until a process is back: half of them are back before any peer has given up on them."""
    return 0.01 + unit(entropy) * (0.2 if below(entropy, 2) else 2.5)


def ends(worker: str, workers: tuple[str, ...], entropy: Entropy) -> tuple[str, str]:
    """A worker and its router or, as often, another worker; in either order."""
    others = [name for name in workers if name != worker]
    other = others[below(entropy, len(others))] if others and below(entropy, 2) else ROUTER
    return (worker, other) if below(entropy, 2) else (other, worker)
