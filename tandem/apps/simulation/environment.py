"""The common ground of all simulated workers and stores of a world."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kv_transfer.index.redis_publisher import RedisPublisher
from kv_transfer.tickets import Keyring
from kv_transfer.tiers.settings import TierSettings
from kv_transfer.transport.memory import MemoryNetwork
from tandem.apps.simulation.loop import VirtualLoop
from tandem.apps.simulation.redis_node import RedisNode
from tandem.apps.simulation.topology import PlatformTopology
from tandem.apps.simulation.watch import Broken
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.messages import Hello
from tandem.core.metrics import Meter
from tandem.core.spans import Recorder
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.link.memory_link import MemoryLinks
from tandem.worker.deps import OpenPublisher


@dataclass(frozen=True)
class NodeEnvironment:
    """What the workers and stores of a world share. `redis` is None in a world without Redis."""

    loop: VirtualLoop
    model: SimulatedModel
    scheduler: SchedulerSettings
    deadlines: Deadlines
    meter: Meter
    recorder: Recorder
    links: MemoryLinks
    fabric: MemoryNetwork
    keyring: Keyring
    broken: Broken
    tiers: TierSettings = field(default_factory=TierSettings)
    shared: PlatformTopology = field(default_factory=PlatformTopology)
    redis: RedisNode | None = None
    stream_interval: int = 1

    def publishing(self, name: str, clock: Clock, opened: Callable[[RedisPublisher], None]) -> OpenPublisher | None:
        """The function that opens the publisher which reports to Redis which blocks node `name` has; None in a world
        without Redis. `opened` receives the publisher."""
        redis = self.redis
        if redis is None:
            return None

        def publisher(hello: Hello, names: Callable[[], Mapping[str, Sequence[bytes]]]) -> RedisPublisher:
            made = RedisPublisher(self.shared.redis, hello, names, clock, self.meter, redis.connect(name))
            opened(made)
            return made

        return publisher
