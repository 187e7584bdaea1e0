"""All routers of a world, and the load balancer in front of them."""

from collections.abc import Iterator, Sequence

from tandem.apps.simulation.router_node import RouterLife, RouterNode
from tandem.core.entropy import SeededEntropy, below


class Routers:
    """The routers of a world, at least one. The seed decides which router a request goes to first."""

    def __init__(self, nodes: Sequence[RouterNode], seed: int) -> None:
        self.nodes = tuple(nodes)
        self._seed = seed

    def __iter__(self) -> Iterator[RouterNode]:
        return iter(self.nodes)

    def named(self, name: str) -> RouterNode:
        """The one on the node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def lives(self) -> tuple[RouterLife, ...]:
        """The processes that run."""
        return tuple(node.life for node in self.nodes if node.life is not None)

    def choose(self, request_id: str, tries: int = 0) -> RouterNode | None:
        """The router that a client reaches after `tries` earlier tries, among those that can be asked; None when none
        can."""
        count = len(self.nodes)
        first = tries
        if count > 1:
            first += below(SeededEntropy(self._seed, f"way of {request_id}"), count)
        turns = (self.nodes[(first + turn) % count] for turn in range(count))
        return next((node for node in turns if node.can_be_asked()), None)

    @property
    def lease_s(self) -> float:
        """Seconds for which resumable requests wait for their clients."""
        return self.nodes[0].lease_s

    @property
    def frozen(self) -> bool:
        """Whether one of them is stopped."""
        return any(node.frozen_since is not None for node in self.nodes)

    def frozen_s(self, since: float) -> float:
        """Seconds for which the routers' processes have been stopped after the time `since`, added up over the
        routers."""
        return sum(node.frozen_s(since) for node in self.nodes)

    def ready(self) -> bool:
        """Whether each is connected with everybody it is to be."""
        lives = self.lives()
        return len(lives) == len(self.nodes) and all(
            life.dispatcher.ready() is None and not life.fleet.problems() for life in lives
        )

    def paired(self) -> bool:
        """Whether each has proved every pair that it keeps."""
        pairs = [pair for life in self.lives() for worker in life.fleet.listing() for pair in worker.pairs]
        return all(pair.state == "closed" for pair in pairs)

    def deciding(self) -> tuple[str, ...]:
        """The names of those that decide who takes prompts for others."""
        return tuple(
            life.name for life in self.lives() for outlook in life.dispatcher.outlooks() if outlook.decides_here
        )

    def agreed(self) -> bool:
        """Whether one of them decides, and what it decides is in force at all."""
        splits = {tuple(outlook.prefills) for life in self.lives() for outlook in life.dispatcher.outlooks()}
        return len(self.deciding()) == len(splits) == 1

    def problems(self) -> dict[str, dict[str, str]]:
        """Why nodes are not connected, by router."""
        return {life.name: found for life in self.lives() if (found := life.fleet.problems())}
