"""The workers a router has links to: dialing, heartbeats, loss, load figures and the block index.

Members are addresses that the caller supplies; each is dialed for as long as it is a member. A worker counts from its
`Hello` until its link ends or it has been silent too long. Runs on asyncio only.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from kv_transfer.index.protocol import BlockIndex, Held
from router.fleet.handshake import check_hello
from router.fleet.heartbeat_timeout import TimedOutWorkers, timed_out_workers
from router.fleet.introduction import first_frame
from router.fleet.knowledge import BlockKnowledge, LiveWorkers, Pairing
from router.fleet.listing import WorkerListing, listing
from router.fleet.model_views import NO_WORKERS, ModelViews, by_model
from router.fleet.orphaned_holders import IndexScope, SharedIndex
from router.fleet.pairs import Key
from router.fleet.peer import News, Peer, PeerListener
from router.fleet.prober import PairProber
from router.fleet.reconnect_holdoff import ReconnectHoldoff, ReconnectTracker
from router.fleet.redial import Redial
from router.fleet.services import FactsChanges, MemberChanges, MemberFacts, ServiceFacts, ServiceRegistry
from router.fleet.state_reader import StateReader
from router.fleet.turn_share import TurnShare, sliced
from router.fleet.worker_counts import WorkerCounts
from router.placement.pairs import Pairs
from router.placement.view import WorkerView
from router.settings import FleetSettings
from router.split.values import steps_s
from router.split.worker_status import ROLE as SPLIT_ROLE
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.kv import compatibility_key
from tandem.core.messages import (
    ITL_TARGET,
    Drain,
    Draining,
    Hello,
    Ready,
    RouterMessage,
    SplitPublished,
    SplitRecord,
    Transferred,
    Tune,
)
from tandem.core.metrics import Meter
from tandem.link.protocol import Dialer, RouterLink


class Fleet:
    """Owns the links. `run(listener)` is its only long-lived coroutine; `set_members` may be called at any time."""

    def __init__(
        self,
        dialer: Dialer,
        clock: Clock,
        deadlines: Deadlines,
        index: BlockIndex,
        meter: Meter,
        settings: FleetSettings | None = None,
        prober: PairProber | None = None,
        shared: SharedIndex | None = None,
        knowledge: Callable[..., BlockKnowledge] = BlockKnowledge,
        services: ServiceRegistry | None = None,
    ) -> None:
        """Without a `prober`, every pair of workers is trusted; without `shared`, only links report blocks.
        `knowledge` makes the knowledge of blocks, from the arguments of `BlockKnowledge`."""
        self._dialer = dialer
        self._clock = clock
        self._deadlines = deadlines
        self._settings = settings or FleetSettings()
        self._prober = prober
        self._worker_counts = WorkerCounts(meter)
        self._turn = TurnShare()
        self._reconnect_tracker = ReconnectTracker(self._settings.regroup_s)
        self._answers = asyncio.Event()
        self._members: dict[str, asyncio.Task[None] | None] = {}
        self._peers: dict[str, Peer] = {}
        self._pairings: dict[Pairing, int] = {}
        known = LiveWorkers(self._peers, self._pairings)
        self.blocks = knowledge(index, known, clock, self._settings, shared)
        """The record of which workers hold which blocks."""
        self._by_model: dict[str, ModelViews] = {}
        self._hellos: dict[str, Hello] = {}
        self.services = services or ServiceRegistry()
        """What is known of models beyond what their workers report."""
        self._problems: dict[str, str] = {}
        self._drains: dict[str, float] = {}
        self._splits: dict[str, SplitRecord] = {}
        self._group: asyncio.TaskGroup | None = None
        self._listener: PeerListener | None = None

    # ---- what the rest of the router asks ----

    def peer(self, worker_id: str) -> Peer | None:
        """The live incarnation of a worker."""
        return self._peers.get(worker_id)

    def peers(self) -> tuple[Peer, ...]:
        return tuple(self._peers.values())

    def views(self, model: str) -> tuple[WorkerView, ...]:
        """The live workers of a model, in order of worker id."""
        return self._by_model.get(model, NO_WORKERS).views

    def roots(self, model: str) -> tuple[tuple[bytes, int], ...]:
        """The (root name, block tokens) in use by the live workers of a model: one, but for a rollout."""
        return self._by_model.get(model, NO_WORKERS).roots

    def reconnect_holdoff(self, model: str) -> ReconnectHoldoff | None:
        """Whether so many workers of a model have just been lost, and may be back, that placing had better wait."""
        return self._reconnect_tracker.look(model, self._clock.now())

    def revisions(self, model: str) -> tuple[str, ...]:
        """The revisions that live workers of a model are of: one, but for a rollout."""
        return self._by_model.get(model, NO_WORKERS).revisions

    def leading(self, names: Sequence[bytes], scope: IndexScope | None = None) -> dict[str, Held]:
        """The number of leading names that each worker holds, and where it holds them."""
        return self.blocks.leading(names, scope)

    @property
    def pairs(self) -> Pairs | None:
        """Which decode workers may pull from which prefill workers; None when all may."""
        return self._prober.views if self._prober is not None else None

    def want(self, pairs: Iterable[Key]) -> None:
        """Ask for proof of these pairs, which placement would have looked at had they been proved."""
        if self._prober is not None:
            self._prober.want(pairs)

    def unproven(self) -> str | None:
        """Why nothing could be handed off yet although there are workers for it; None once that is decided."""
        return self._prober.book.unproven() if self._prober is not None else None

    def listing(self, *, pairs: bool = True) -> tuple[WorkerListing, ...]:
        """Every worker with its state and, if asked for, its pairs."""
        book = self._prober.book if self._prober is not None else None
        return listing(self.peers(), self._worker_counts.fenced, book, self.services, self._clock.now(), pairs=pairs)

    def problems(self) -> dict[str, str]:
        """Members without a usable link, by address, with the reason."""
        connected = {peer.address for peer in self._peers.values()}
        absent = [each for each in self._members if each not in connected]
        return {each: self._problems.get(each, "not connected yet") for each in absent}

    # ---- membership ----

    def set_members(self, addresses: Iterable[str]) -> None:
        """Set the wanted workers, which replace all earlier ones. Links to the others end."""
        wanted = dict.fromkeys(addresses)
        self.change_members(wanted, [address for address in self._members if address not in wanted])

    def change_members(self, joined: Iterable[str], left: Iterable[str]) -> None:
        """Add wanted workers, and end the links to others."""
        known = len(self._hellos)
        for address in left:
            task = self._members.pop(address, None)
            self._problems.pop(address, None)
            self._hellos.pop(address, None)
            self._worker_counts.clear(address)
            if task is not None:
                task.cancel()
        for address in joined:
            if address not in self._members:
                self._members[address] = self._begin(address)
        if len(self._hellos) < known:
            self.services.renew(self._hellos.values())

    def set_services(self, facts: Iterable[ServiceFacts], members: Iterable[MemberFacts]) -> None:
        """Set the services, which replace all earlier ones, with what is known of their members."""
        self.change_services(*self.services.difference(facts, members))

    def change_services(self, facts: FactsChanges, members: MemberChanges) -> None:
        """Change these services, by model, and what is known of these members, by address; None takes one away."""
        self.services.change(facts, members)
        for model in facts:
            for view in self.views(model):
                self._tune(self._peers[view.worker_id])
        if facts and self._listener is not None:
            self._listener.services_changed()

    def set_drains(self, within_s: Mapping[str, float]) -> None:
        """Set the members, by address, that are to leave, each within its number of seconds. Each is asked once on
        every link."""
        fresh = {address: bound for address, bound in within_s.items() if self._drains.get(address) != bound}
        self._drains = dict(within_s)
        for peer in self.peers():
            if peer.address in fresh:
                peer.send(Drain(fresh[peer.address]))

    def set_split(self, model: str, split: SplitRecord) -> None:
        """Put a split into force: the `auto` workers of a model that it names take prompts for others, and the others
        answer."""
        self._splits[model] = split
        for view in self.views(model):
            if view.role == SPLIT_ROLE:
                view.take_prompts(view.worker_id in split.prefills)
        for peer in self.peers():
            if peer.view.model == model:
                self._tune(peer)

    async def run(self, listener: PeerListener) -> None:
        """Keep links to all members until cancelled."""
        self._listener = listener
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for address in self._members:
                    self._members[address] = self._begin(address)
                group.create_task(self._heartbeat(), name="fleet heartbeat")
                group.create_task(self.blocks.run(), name="index upkeep")
                if self._prober is not None:
                    self._prober.opened = listener.pair_opened
                    group.create_task(self._prober.run(), name="pair canaries")
        finally:
            self._group = None

    def _begin(self, address: str) -> "asyncio.Task[None] | None":
        if self._group is None:
            return None
        return self._group.create_task(self._keep(address), name=f"link to {address}")

    # ---- one member ----

    async def _keep(self, address: str) -> None:
        redial = Redial(self._settings, self._answers)
        while True:
            began = self._clock.now()
            try:
                await self._connect_and_serve(address)
            except TandemError as error:
                self._problems[address] = error.message
                if error.code in ("protocol_mismatch", "bad_setting"):
                    redial.refused()
            redial.lasted(self._clock.now() - began)
            await redial.pause()

    async def _connect_and_serve(self, address: str) -> None:
        """Dial and stay until the link ends, which raises `link_lost` or the reason for closing it."""
        link = await self._dialer.dial(address, self._deadlines.connect_s)
        reason = "the router stopped"
        try:
            first = await first_frame(link, self._deadlines.connect_s)
            peer = self._admitted(address, link, first[0])
            reason = await self._serve(peer, first[1:])
        except TandemError as error:
            reason = error.message
            raise
        finally:
            link.close(reason)
        raise TandemError("link_lost", reason)

    def _admitted(self, address: str, link: RouterLink, first: RouterMessage) -> Peer:
        hello = check_hello(address, first, self.services)
        known = self._peers.get(hello.worker_id)
        if known is not None and (known.epoch == hello.epoch or known.view.model != hello.model):
            reason = f"worker {hello.worker_id} at {address} has a link at {known.address} already"
            self._worker_counts.fence(address, hello, reason)
            raise TandemError("bad_setting", reason, param="members")
        if known is not None:
            reason = f"worker {hello.worker_id} came back as a new incarnation"
            self._leave(known, reason)
            known.link.close(reason)
        pairing = self._pairings.setdefault(
            (hello.revision, hello.root, compatibility_key(hello.layout)), len(self._pairings)
        )
        return Peer(address, link, hello, WorkerView.of(hello, pairing), self._clock.now())

    async def _serve(self, peer: Peer, rest: tuple[RouterMessage, ...]) -> str:
        """Read both streams until one ends; gives the reason.

        This is not a task group: one that is cancelled in the moment in which a task of it fails reports the failure
        alone (until Python 3.13), and a fleet that was stopped would go on dialing.
        """
        reason = "the router stopped"
        self._join(peer)
        loop = asyncio.get_running_loop()
        reading = (
            loop.create_task(self._read_tokens(peer, rest), name=f"tokens of {peer.worker_id}"),
            loop.create_task(self._state_of(peer).run(), name=f"state of {peer.worker_id}"),
        )
        try:
            await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            next(task for task in reading if task.done()).result()
        except TandemError as error:
            reason = error.message
            if error.code == "stale_epoch":
                self._worker_counts.fence(peer.address, peer.hello, reason)
        finally:
            self._leave(peer, reason)
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        return reason

    def _join(self, peer: Peer) -> None:
        assert self._listener is not None
        self._peers[peer.worker_id] = peer
        self._hellos[peer.address] = peer.hello
        self.services.renew(self._hellos.values())
        self._problems.pop(peer.address, None)
        self._worker_counts.clear(peer.address)
        split = self._splits.get(peer.view.model)
        if split is not None and peer.view.role == SPLIT_ROLE:
            peer.view.take_prompts(peer.worker_id in split.prefills)
        self._renew_views()
        # A worker that was fenced hears at once that somebody works with it again.
        peer.ping()
        if peer.address in self._drains:
            peer.send(Drain(self._drains[peer.address]))
        self._tune(peer, joined=True)
        self._became_usable(peer)

    def _tune(self, peer: Peer, joined: bool = False) -> None:
        """Send the worker the inter-token target of its service, which its steps are to meet, whatever target was
        sent on another link. A router that knows nothing of the service withdraws only what it has sent on this link:
        other routers may know the service."""
        model = peer.view.model
        target_s, first = self.services.itl_target_s(model), joined and self.services.of(model) is not None
        split = self._splits.get(model)
        if split is not None and split.itl_target_s is not None and peer.view.role == SPLIT_ROLE:
            target_s = steps_s(split.itl_target_s, peer.view.worker_id in split.prefills)
        if ITL_TARGET in peer.hello.features and (first or target_s != peer.itl_target_s):
            peer.itl_target_s = target_s
            peer.send(Tune(target_s))

    def _became_usable(self, peer: Peer) -> None:
        assert self._listener is not None
        if peer.view.ready:
            self._reconnect_tracker.usable(peer.view, self._clock.now())
            if self.reconnect_holdoff(peer.view.model) is not None:
                self._answers.set()
                self._answers.clear()
            if self._prober is not None and not peer.view.draining and peer.view.role != "store":
                self._prober.ready(peer)
            self._listener.joined(peer)

    def _leave(self, peer: Peer, reason: str) -> None:
        if not peer.alive:
            return
        assert self._listener is not None
        if self._peers.get(peer.worker_id) is peer:
            del self._peers[peer.worker_id]
        if peer.address in self._members:
            self._reconnect_tracker.lost((peer.view,), self._clock.now())
        else:
            self._reconnect_tracker.gone(peer.view)
        self.blocks.forget(peer.worker_id)
        self._renew_views()
        peer.lost(reason)
        if self._prober is not None:
            self._prober.gone(peer)
        self._listener.left(peer, reason)

    def _renew_views(self) -> None:
        self._by_model = by_model(peer.view for peer in self._peers.values())
        self._worker_counts.count(self._peers.values())

    # ---- reading ----

    async def _read_tokens(self, peer: Peer, rest: tuple[RouterMessage, ...]) -> None:
        receive, now = peer.link.tokens.receive, self._clock.now
        messages = rest
        while True:
            for part, outputs in sliced(messages):
                while outputs and not self._turn.take(outputs):  # noqa: ASYNC110  (until the next turn)
                    await asyncio.sleep(0)
                for news in peer.take(part, now()):
                    self._take_news(peer, news)
            messages = await receive()

    def _take_news(self, peer: Peer, news: News) -> None:
        assert self._listener is not None
        match news:
            case Transferred():
                if self._prober is not None:
                    self._prober.heard(peer, news)
                return
            case SplitPublished():
                self._listener.split_published(peer, news)
                return
            case Ready():
                self._hellos[peer.address] = peer.hello
                self._became_usable(peer)
            case Draining():
                if self._prober is not None:
                    self._prober.gone(peer)
                self._listener.drains(peer)
        self._worker_counts.count(self._peers.values())

    def _state_of(self, peer: Peer) -> StateReader:
        assert self._listener is not None
        return StateReader(peer, self.blocks.index, self._clock, self._settings, self._listener)

    # ---- heartbeats ----

    def _give_up(self, found: TimedOutWorkers) -> None:
        """Give up the workers that timed out. All count as lost before the first loss is reported, so that work does
        not move from one lost worker to the next."""
        lost = [self._peers[worker_id] for worker_id in found.reasons]
        self._reconnect_tracker.lost([peer.view for peer in lost], self._clock.now())
        for peer in lost:
            reason = found.reasons[peer.worker_id]
            if found.fenced:
                self._worker_counts.fence(peer.address, peer.hello, reason)
            self._leave(peer, reason)
            peer.link.close(reason)

    async def _heartbeat(self) -> None:
        """Ping every worker and close links that have been silent."""
        due = self._clock.now()
        while True:
            now = self._clock.now()
            self._give_up(timed_out_workers(self.peers(), now, due, self._deadlines))
            for peer in self.peers():
                peer.ping()
                if peer.hello.kv_events and peer.feed.idle and now - peer.asked_at >= self._settings.snapshot_again_s:
                    peer.ask_snapshot(now)
            due = now + self._deadlines.heartbeat_every_s
            await asyncio.sleep(self._deadlines.heartbeat_every_s)
