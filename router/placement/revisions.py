"""Chooses the revision of a service that a request goes to. Pure.

New requests are split by weight. Requests with the same key go to the same revision, on every router: revisions are
ranked by weighted rendezvous hashing, so that changed weights move as few keys as they can, and only to revisions
whose share grew. A request that has begun stays with its revision, because its positions and KV belong to that one.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from router.placement.decision import Unplaced

_HASHES: Final = float(1 << 64)


@dataclass(frozen=True, slots=True)
class Weights:
    """How new requests of one service are split among its revisions. `shares` has (revision, weight) in order of
    names, each weight above 0; `seed` is the service's own, so that one key is not in the same share of every
    service."""

    seed: str
    shares: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, seed: str, weights: Mapping[str, int]) -> "Weights | None":
        """None where no revision has any: then all of them may be used."""
        shares = tuple(sorted((revision, weight) for revision, weight in weights.items() if weight > 0))
        return cls(seed, shares) if shares else None

    @property
    def only(self) -> str | None:
        """The revision that gets everything, if one does."""
        return self.shares[0][0] if len(self.shares) == 1 else None

    @property
    def total(self) -> int:
        """The sum of all weights."""
        return sum(weight for _, weight in self.shares)


class Route(NamedTuple):
    """A revision to be tried, and the sentence that says why it is this one."""

    revision: str
    why: str


def ranked(weights: Weights, key: str) -> tuple[str, ...]:
    """The revisions with weight, in the order in which `key` tries them. The first one's share over all keys is its
    part of the weights (Efraimidis and Spirakis' exponential draw, with a hash in place of chance)."""
    if weights.only is not None:
        return (weights.only,)
    draws = [(_draw(weights.seed, revision, key) / weight, revision) for revision, weight in weights.shares]
    return tuple(revision for _, revision in sorted(draws))


def routes(weights: Weights, key: str, begun: str, usable: Collection[str]) -> tuple[Route, ...]:
    """The revisions to be tried in turn. `begun` is the one that the request has begun on, empty for a new request;
    `usable` are those that have a worker to continue with, and are only looked at where `begun` is not empty."""
    if begun and begun in usable:
        return (Route(begun, f"it has begun on revision {begun}"),)
    order = ranked(weights, key)
    if begun:
        lost = f"no worker of revision {begun}, on which it has begun, is left"
        return tuple(Route(revision, f"{lost}: revision {revision}") for revision in order)
    shares = dict(weights.shares)
    first = Route(order[0], f"revision {order[0]} has {shares[order[0]]} of {weights.total} parts of new requests")
    others = (Route(each, f"revision {order[0]} cannot take it now: revision {each}") for each in order[1:])
    return (first, *others)


def unplaced(refused: Sequence[Unplaced]) -> Unplaced:
    """The answer when none of the revisions that were tried can take a request: of their codes the one that may pass,
    with the reasons of all. A request never fits only if it fits on none of them."""
    codes = [each.code for each in refused]
    code = next((code for code in ("queue_full", "no_workers") if code in codes), codes[0])
    return Unplaced(code, tuple(dict.fromkeys(reason for each in refused for reason in each.reasons)))


def _draw(seed: str, revision: str, key: str) -> float:
    """Exponentially distributed over keys, with mean 1."""
    digest = blake2b(f"{seed}\x00{revision}\x00{key}".encode("utf-8", "replace"), digest_size=8).digest()
    return -math.log((int.from_bytes(digest, "little") + 1) / _HASHES)
