"""The simulated network: seeded delays for links and pulls, and bytes that arrive changed when a fault says so."""

from dataclasses import dataclass

from tandem.core.entropy import SeededEntropy, below, unit


@dataclass(frozen=True)
class NetworkProfile:
    """Delays are uniform in the given ranges (seconds); `bytes_per_s` is what one pull gets."""

    link_delay_s: tuple[float, float] = (0.0001, 0.002)
    pull_latency_s: tuple[float, float] = (0.0001, 0.001)
    bytes_per_s: float = 50e6


class SimNetwork:
    """`tandem.service.memory_stream.LinkPolicy` and `kv_transfer.memory.PathPolicy` of one simulated world."""

    def __init__(self, profile: NetworkProfile, seed: int) -> None:
        self._profile = profile
        self._links = SeededEntropy(seed, "links")
        self._pulls = SeededEntropy(seed, "pulls")
        self._corrupt: dict[str, int] = {}
        self.corrupted = 0
        """Blocks that were changed on their way so far."""

    def corrupt(self, holder: str, blocks: int) -> None:
        """Flip a bit in each of the next `blocks` blocks that leave this holder."""
        self._corrupt[holder] = self._corrupt.get(holder, 0) + blocks

    def delay_s(self, source: str, target: str) -> float | None:
        return _uniform(self._links, self._profile.link_delay_s)

    def carries(self, holder: str, receiver: str) -> bool:
        return True

    def latency_s(self, holder: str, receiver: str) -> float:
        return _uniform(self._pulls, self._profile.pull_latency_s)

    def busy_s(self, holder: str, receiver: str, size: int) -> float:
        return size / self._profile.bytes_per_s

    def arrived(self, holder: str, receiver: str, data: bytes) -> bytes:
        left = self._corrupt.get(holder, 0)
        if left == 0 or not data:
            return data
        self._corrupt[holder] = left - 1
        self.corrupted += 1
        changed = bytearray(data)
        changed[below(self._pulls, len(changed))] ^= 1 << below(self._pulls, 8)
        return bytes(changed)


def _uniform(entropy: SeededEntropy, bounds: tuple[float, float]) -> float:
    return bounds[0] + unit(entropy) * (bounds[1] - bounds[0])
