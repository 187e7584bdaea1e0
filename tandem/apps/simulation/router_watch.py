"""Watches one router: its bounds must hold, its index must match the blocks that workers really have, and workers
must release what belonged to its dead incarnations."""

from collections.abc import KeysView, Sequence
from typing import Final

from kv_transfer.index.protocol import TIERS
from router.settings import RouterSettings
from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.platform import Platform
from tandem.apps.simulation.router_node import RouterLife, RouterNode

_FREED_WITHIN_S: Final = 2.0
"""Seconds beyond the time of missing heartbeats for which a worker may hold what belongs to a dead router."""


class RouterWatch:
    """One per router of a world."""

    def __init__(self, router: RouterNode, platform: Platform, settings: RouterSettings, model: str) -> None:
        self.outages: list[tuple[float, float]] = []
        """(from, to) in virtual seconds: this router could use no worker that decodes, or it was stopped."""
        self._router = router
        self._clock = platform.clock
        self._machines = platform.machines
        self._silent = {name: None for name, node in platform.nodes.items() if not node.tells}
        self._settings = settings
        self._model = model
        self._compared: dict[str, tuple[int, int]] = {}
        self._out_since: float | None = None

    def check_promises(self) -> None:
        """Check what the router itself promises."""
        self._router.check()

    def check_knowledge(self) -> None:
        """Check what the router knows of workers, while it lives."""
        life = self._router.life
        if life is not None:
            self._check_index(life)
            self._watch_outage(life)

    def check_let_go(self) -> None:
        """Check that workers release what the router had, while it is dead or stopped."""
        if self._router.deaths:
            self._check_freed()
        if self._router.frozen_since is not None:
            self._check_given_up(self._router.frozen_since)

    # -- the index --

    def _check_index(self, life: RouterLife) -> None:
        """The index holds exactly what a worker has when all its events have arrived, and nothing of lost workers."""
        for name, node in self._machines.items():
            peer = life.fleet.peer(name)
            if name in self._silent and peer is not None:
                self._check_guesses(life, name, peer.hello.blocks)
                continue
            if peer is None or peer.feed.idle:
                self._check_unknown(life, name, lost=peer is None)
                continue
            last = peer.feed.last
            if last is None or self._compared.get(name) == last:
                continue
            if (names := node.names_in_sync(*last)) is not None:
                for tier in TIERS:
                    self._compare(name, tier, life.index.names(name, tier), names.get(tier, ()))
                self._compared[name] = last

    def _compare(self, name: str, tier: str, known: KeysView[bytes], held: Sequence[bytes]) -> None:
        if known != frozenset(held):
            wrong, lacking = len(known - frozenset(held)), len(frozenset(held) - known)
            raise Violation(
                f"the index holds {wrong} blocks in {tier} that {name} does not have there, and lacks {lacking}"
            )

    def _check_guesses(self, life: RouterLife, name: str, blocks: int) -> None:
        """Check that the index guesses no more blocks of a worker than the worker has room for."""
        guessed = len(life.index.names(name))
        if guessed > blocks:
            raise Violation(f"{guessed} blocks are guessed of {name}, which has {blocks}")

    def _check_unknown(self, life: RouterLife, name: str, *, lost: bool) -> None:
        known = sum(len(life.index.names(name, tier)) for tier in TIERS)
        if known:
            why = "which is lost" if lost else "of which nothing is known now"
            raise Violation(f"the index holds {known} blocks of {name}, {why}")

    # -- outages --

    def _watch_outage(self, life: RouterLife) -> None:
        now = self._clock.now()
        stopped = self._router.frozen_since is not None
        if not stopped and any(
            view.role not in ("prefill", "store") and not view.draining for view in life.fleet.views(self._model)
        ):
            self._out_since = None
        elif self._out_since is None:
            self._out_since = now
            self.outages.append((now, now))
        else:
            self.outages[-1] = (self._out_since, now)

    # -- letting go --

    def _check_given_up(self, since: float) -> None:
        """Check that workers have released what belongs to a router that was stopped for too long."""
        life, now = self._router.life, self._clock.now()
        bound_s = self._settings.deadlines.heartbeat_lost_s + _FREED_WITHIN_S
        if life is None or now - since <= bound_s:
            return
        for node in self._machines.values():
            worker = node.incarnation
            # A worker that has just gone on may have accepted a connection that the router asked for before.
            if worker is None or node.frozen or now - max(since, worker.thawed_s) <= bound_s:
                continue
            if life.name in worker.service.host.routers:
                raise Violation(f"{node.name} still serves {life.name}, which was stopped {now - since:.1f} s ago")

    def _check_freed(self) -> None:
        """Check that workers have released what belonged to a dead router, at the latest when its heartbeats are
        missed."""
        at, name = self._router.deaths[0]
        late_s = self._clock.now() - at - self._settings.deadlines.heartbeat_lost_s - _FREED_WITHIN_S
        if late_s <= 0:
            return
        for node in self._machines.values():
            now = node.incarnation
            if now is None:
                continue
            if node.frozen or self._clock.now() - now.thawed_s < 1.0:
                return
            if name in now.service.host.routers:
                raise Violation(f"{node.name} still serves {name}, {late_s:.1f} s after it had to notice its death")
        del self._router.deaths[0]
