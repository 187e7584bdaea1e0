"""What a request for other numbers of workers, or for one to leave, means for a running platform. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandem.apps.cli.member import Member
from tandem.apps.cli.single_node import REPLICAS_MAX
from tandem.apps.cli.supervisor import ROUTER
from tandem.core.errors import TandemError
from tandem.spec.pool import Pool


@dataclass(frozen=True)
class Start:
    """Start the worker number `index` of a pool."""

    pool: Pool
    index: int


@dataclass(frozen=True)
class Scaling:
    """Workers to start, and names of those to drain and remove: the newest first."""

    start: tuple[Start, ...]
    leave: tuple[str, ...]


def scaling(pools: Sequence[Pool], members: Sequence[Member], wanted: Mapping[str, int]) -> Scaling:
    """The starts and departures that bring `members` to the `wanted` number per pool. Raises `bad_setting` when that
    is impossible."""
    by_name = {pool.name: pool for pool in pools}
    for name, count in wanted.items():
        if name not in by_name:
            known = ", ".join(by_name)
            raise TandemError("bad_setting", f"there is no pool {name!r}; there are {known}", param=name)
        if not 0 <= count <= REPLICAS_MAX:
            raise TandemError("bad_setting", f"{name}={count} is not between 0 and {REPLICAS_MAX}", param=name)
    start: list[Start] = []
    leave: list[str] = []
    for name, count in wanted.items():
        there = workers_of(by_name[name], members)
        first = there[-1] + 1 if there else 0
        start += [Start(by_name[name], first + more) for more in range(count - len(there))]
        leave += [f"{name}-{index}" for index in reversed(there[count:])]
    check_leaving(members, leave, [one.pool.role for one in start])
    return Scaling(tuple(start), tuple(leave))


def check_leaving(members: Sequence[Member], leave: Sequence[str], starting: Sequence[str] = ()) -> None:
    """Check that a worker that can decode is left. Raises `bad_setting` when none would be; `starting` are roles of
    workers that will come."""
    stay = [member.role for member in members if member.name not in leave and not member.removed]
    if leave and not any(role not in ("prefill", ROUTER) for role in (*stay, *starting)):
        names = ", ".join(leave)
        raise TandemError(
            "bad_setting", f"without {names} no worker would be left that can decode; stop the platform"
        )


def worker_called(members: Sequence[Member], name: str) -> Member:
    """The worker of a name. Raises `not_found`; `bad_setting` when it cannot leave now."""
    workers = [member for member in members if member.role != ROUTER]
    for member in workers:
        if member.name != name:
            continue
        if member.drain_within_s is not None:
            raise TandemError("bad_setting", f"{name} is leaving already", param=name)
        if member.pid is None or member.state not in ("ready", "alive", "fenced"):
            raise TandemError(
                "bad_setting", f"{name} is {member.state}; only a worker that runs can drain", param=name
            )
        return member
    known = ", ".join(member.name for member in workers)
    raise TandemError("not_found", f"there is no worker {name!r}; there are {known}", param=name)


def workers_of(pool: Pool, members: Sequence[Member]) -> list[int]:
    """The numbers of a pool's workers that are to stay, in order."""
    prefix = f"{pool.name}-"
    numbers = (
        member.name.removeprefix(prefix)
        for member in members
        if member.name.startswith(prefix) and member.role == pool.role and not member.removed
    )
    return sorted(int(number) for number in numbers if number.isdecimal())
