"""Whether Redis says of everybody what is so: asked when all faults are over."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kv_transfer.redis_scripts import ENTRIES_MAX
from tandem.core.messages import Hello
from tandem.sim.platform import Platform
from tandem.sim.redis_scripts import Told, told_by


def disagreement(platform: Platform) -> str | None:
    """What is wrong, in one sentence; None when nothing is, or there is no Redis to ask."""
    redis, fabric = platform.redis, platform.fabric
    if redis is None or redis.data is None:
        return None
    records = told_by(redis.data, fabric.redis.key_prefix, redis.now_ms())
    told = {_who(record): names for record, names in records.items()}
    taken = places(records.values())
    for name, node in platform.machines.items():
        now = node.incarnation
        if now is None or node.publisher is None:
            continue
        mine = told.pop((name, now.service.host.incarnation.epoch), None)
        if mine is None:
            return f"Redis has no record of {name} as it is now"
        for tier, names in node.names().items():
            if mine[tier].keys() != expected(names, mine, taken):
                return _difference(name, tier, mine[tier], names)
    for life in platform.routers.lives():
        if life.shared is None or not life.shared.usable:
            return f"{life.name} does not use Redis"
    return "Redis has records of nobody" if told else None


def places(told: Iterable[Told]) -> Counter[bytes]:
    """How many holders have an entry under each name; one has one, whatever tiers it says."""
    return Counter(each for tiers in told for each in frozenset().union(*tiers.values()))


def expected(names: Sequence[bytes], mine: Told, taken: Mapping[bytes, int]) -> frozenset[bytes]:
    """Of a holder's names in a tier those that Redis must say: all but those for which others have taken every place
    and left it none."""
    own = frozenset().union(*mine.values())
    return frozenset(each for each in names if each in own or taken[each] < ENTRIES_MAX)


def _who(record: bytes) -> tuple[str, int]:
    hello = msgspec.msgpack.decode(record, type=Hello)
    return hello.worker_id, hello.epoch


def _difference(name: str, tier: str, told: Mapping[bytes, None], names: Sequence[bytes]) -> str:
    held = frozenset(names)
    wrong = sum(each not in held for each in told)
    lacking = sum(each not in told for each in names)
    return f"Redis has {wrong} blocks in {tier} that {name} does not have there, and lacks {lacking}"
