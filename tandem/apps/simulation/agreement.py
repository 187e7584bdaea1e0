"""Checks whether Redis agrees with the actual state of the platform, once all faults are over."""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence

import msgspec

from tandem.apps.simulation.platform import Platform
from tandem.apps.simulation.redis_scripts import reported_by
from tandem.core.messages import Hello


def disagreement(platform: Platform) -> str | None:
    """How Redis disagrees with the platform, in one sentence; None when it does not, or there is no Redis to ask."""
    redis, fabric = platform.redis, platform.fabric
    if redis is None or redis.data is None:
        return None
    records = reported_by(redis.data, fabric.redis.key_prefix, redis.now_ms())
    told = {_who(record): names for record, names in records.items()}
    displaced = defaultdict[tuple[str, int], set[bytes]](set)
    for record, names in redis.data.displaced.items():
        displaced[_who(record)] |= names
    for name, node in platform.machines.items():
        now = node.incarnation
        if now is None or node.publisher is None:
            continue
        who = name, now.service.host.incarnation.epoch
        mine = told.pop(who, None)
        if mine is None:
            return f"Redis has no record of {name} as it is now"
        for tier, held in node.names().items():
            if mine[tier].keys() != expected(held, mine[tier], displaced[who]):
                return _difference(name, tier, mine[tier], held)
    for life in platform.routers.lives():
        if life.shared is None or not life.shared.usable:
            return f"{life.name} does not use Redis"
    return "Redis has records of nobody" if told else None


def expected(names: Sequence[bytes], told: Container[bytes], displaced: Container[bytes]) -> frozenset[bytes]:
    """The names of a holder in a tier that Redis must report: all but those where the holder gave way to others, as a
    name has few places, and that it has not reported again."""
    return frozenset(each for each in names if each in told or each not in displaced)


def _who(record: bytes) -> tuple[str, int]:
    hello = msgspec.msgpack.decode(record, type=Hello)
    return hello.worker_id, hello.epoch


def _difference(name: str, tier: str, told: Mapping[bytes, None], names: Sequence[bytes]) -> str:
    held = frozenset(names)
    wrong = sum(each not in held for each in told)
    lacking = sum(each not in told for each in names)
    return f"Redis has {wrong} blocks in {tier} that {name} does not have there, and lacks {lacking}"
