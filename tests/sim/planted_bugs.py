"""Bugs to plant in the real code, each as a function that a test lets replace the right one."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from kv_store import replicator as collector
from kv_store.block_server import BlockServer
from kv_transfer.export import Exporter
from kv_transfer.fetch_pull import PeerFetch
from kv_transfer.index.memory_index import MemoryIndex
from kv_transfer.index.redis_connection import Argument
from kv_transfer.index.redis_nodes import RedisNodes
from kv_transfer.index.redis_publisher import RedisPublisher
from kv_transfer.index.redis_wire import RedisHolder
from kv_transfer.transport.protocol import PullOpen
from kv_transfer.verify import Refusal, Verifier
from router.dispatch.admission import Admission
from router.dispatch.positions import Positions
from router.dispatch.request_state import RequestState
from router.dispatch.retry_budget import RetryBudget
from router.fleet.approximate_index import ApproximateIndex
from router.fleet.knowledge import BlockKnowledge
from router.http_server.response_writer import ResponseWriter
from tandem.core.kv import Handle
from tandem.core.messages import SequenceOutput
from tandem.engine.digest import Digester, bind
from tandem.engine.hashing import hashed
from tandem.engine.local import LocalEngine
from tandem.engine.protocol import Gone, Pending
from tandem.engine.scheduler.kv_cache_manager import KvCacheManager
from tandem.engine.scheduler.leases import LeaseTable
from tandem.engine.scheduler.sequence import Sequence
from tandem.worker.attempt_manager import SELF, AttemptManager
from tandem.worker.session import Session

Plant = Callable[[pytest.MonkeyPatch], None]


def a_lease_not_released(patch: pytest.MonkeyPatch) -> None:
    """The holder hears that nothing more is wanted, and keeps it all the same, until the lease ends by itself."""
    patch.setattr(LocalEngine, "release", lambda _engine, _lease_id: None)


def an_epoch_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A holder answers whoever has a ticket, be it for an incarnation that is gone."""
    admit = Exporter._admit

    def lenient(exporter: Exporter, request: PullOpen) -> None:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(type(exporter._space), "epoch", request.holder_epoch)
            admit(exporter, request)

    patch.setattr(Exporter, "_admit", lenient)


def a_retry_without_dedup(patch: pytest.MonkeyPatch) -> None:
    """Whatever a worker sends is delivered, also what another one has sent before."""

    def accept(positions: Positions, output: SequenceOutput) -> SequenceOutput:
        positions.tokens.extend(output.tokens)
        positions.text_chars += len(output.text)
        positions.finish = output.finish
        return output

    patch.setattr(Positions, "accept", accept)


def a_missing_deadline(patch: pytest.MonkeyPatch) -> None:
    """The router knows its own deadline only, not the client's."""
    begin = RequestState.__init__

    def patient(request: RequestState, *arguments: Any) -> None:
        begin(request, *arguments)
        request._deadline = request.generation.received + request._tools.settings.deadlines.total_s

    patch.setattr(RequestState, "__init__", patient)


def a_digest_computed_at_pull_time(patch: pytest.MonkeyPatch) -> None:
    """The digest says what the memory holds now instead of what the engine wrote."""
    look = LocalEngine.look

    def late(engine: LocalEngine, lease_id: str, name: bytes) -> Handle | Pending | Gone:
        found = look(engine, lease_id, name)
        if not isinstance(found, Handle):
            return found
        words = Digester(engine.layout).content_words(engine.memory.block(found.slot))
        return msgspec.structs.replace(found, digests=bind(words, found.epoch, found.name, found.generation))

    patch.setattr(LocalEngine, "look", late)


def a_tail_block_put_in_the_index(patch: pytest.MonkeyPatch) -> None:
    """An exported partial block is published like a full one."""
    complete = KvCacheManager.complete

    def public(kv_cache: KvCacheManager, sequence: Sequence, block: int, digests: bytes) -> None:
        if block >= len(sequence.names):
            sequence.extend_names(sequence.job.work.root, kv_cache.block_tokens)
        if block < len(sequence.names) or not sequence.job.leased:
            complete(kv_cache, sequence, block, digests)
            return
        kv_cache.pool.publish(sequence.table[block], sequence.job.tail_name(kv_cache.block_tokens), digests)
        kv_cache.export(sequence, block)

    patch.setattr(KvCacheManager, "complete", public)


def a_lease_that_is_only_released_when_everything_arrived(patch: pytest.MonkeyPatch) -> None:
    """A fetch that fails tells nobody, and the router does not tell prefill either."""

    async def silent(_leg: PeerFetch) -> None:
        return None

    patch.setattr(PeerFetch, "let_go", silent)
    patch.setattr(RequestState, "_let_prefill_go", lambda _request, _attempt: None)


def a_block_freed_while_leased(patch: pytest.MonkeyPatch) -> None:
    """An export is noted under its lease without a reference of its own."""

    for method, counts in (("_pin", "ref"), ("_unpin", "release")):
        patch.setattr(LeaseTable, method, _without(getattr(LeaseTable, method), counts))


def _without(noted: Callable[..., None], counts: str) -> Callable[..., None]:
    """A method of the lease table whose pool does not count what it notes."""

    def uncounted(leases: LeaseTable, *noting: object) -> None:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(leases.pool, counts, lambda _slot: None)
            noted(leases, *noting)

    return uncounted


def a_lost_worker_left_in_the_index(patch: pytest.MonkeyPatch) -> None:
    """When a link is lost, what it told of blocks stays."""
    patch.setattr(MemoryIndex, "drop", lambda _index, _worker: None)


def a_gap_in_the_events_ignored(patch: pytest.MonkeyPatch) -> None:
    """What is removed is taken for still there."""
    removed = MemoryIndex.removed

    def forgetful(index: MemoryIndex, worker: str, names: list[bytes], tier: str = "hbm") -> None:
        removed(index, worker, names[1:], tier)

    patch.setattr(MemoryIndex, "removed", forgetful)


def a_queue_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    """The router takes whatever comes."""
    patch.setattr(Admission, "_refusal", lambda _admission, _model: None)


def a_retry_without_a_budget(patch: pytest.MonkeyPatch) -> None:
    """Every failure is tried again, however many there are."""

    def spend(budget: RetryBudget) -> bool:
        budget._retries += 1
        return True

    patch.setattr(RetryBudget, "spend", spend)


def a_command_obeyed_twice(patch: pytest.MonkeyPatch) -> None:
    """A submit that a lower layer repeats starts the attempt once more."""
    patch.setattr(Session, "opens", lambda _session, _handle: True)


def a_silent_router_kept(patch: pytest.MonkeyPatch) -> None:
    """A worker goes on for a router that it has not heard of for long."""
    patch.setattr(Session, "heard", property(lambda _session: 1e9, lambda _session, _at: None), raising=False)


def work_for_a_router_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    """The link is forgotten, the attempts are not."""
    patch.setattr(AttemptManager, "forget_session", lambda _desk, _session_id: None)


def an_end_lost_with_a_slow_client(patch: pytest.MonkeyPatch) -> None:
    """What has gathered for a client that does not read is dropped, the end of its answer included."""
    give_up = ResponseWriter._give_up

    def careless(outlet: ResponseWriter) -> None:
        outlet._gathered = []
        give_up(outlet)

    patch.setattr(ResponseWriter, "_give_up", careless)


def lent_blocks_that_never_come_back(patch: pytest.MonkeyPatch) -> None:
    """A store keeps what it has lent, whatever the receiver says and however long it takes."""
    patch.setattr(BlockServer, "_release", lambda _block_server, _lease_id: None)


def redis_believed_of_another_incarnation(patch: pytest.MonkeyPatch) -> None:
    """What Redis has of a worker counts while its feed has a gap, whichever incarnation told it."""

    def credulous(knowledge: BlockKnowledge, holder: str, _told: RedisHolder) -> bool:
        peer = knowledge._peers.get(holder)
        return peer is None or peer.feed.last is None

    patch.setattr(BlockKnowledge, "_is_news", credulous)


def a_look_up_that_waits_as_long_as_a_write(patch: pytest.MonkeyPatch) -> None:
    """A slow Redis holds requests up."""
    evaluate = RedisNodes.evaluate

    async def patient(nodes: RedisNodes, script: str, arguments: Iterable[Argument], within_s: float) -> object:
        return await evaluate(nodes, script, tuple(arguments), max(within_s, nodes._settings.publish_s))

    patch.setattr(RedisNodes, "evaluate", patient)


def a_restarted_redis_that_nobody_notices(patch: pytest.MonkeyPatch) -> None:
    """A holder goes on telling under the number that it had before Redis lost its data."""
    patch.setattr(RedisPublisher, "_void_here", lambda _publisher, _number: None)
    patch.setattr(RedisNodes, "server", property(lambda _nodes: "", lambda _nodes, _server: None), raising=False)


def one_router_that_frees_the_others_requests(patch: pytest.MonkeyPatch) -> None:
    """When one router is gone a worker ends the work of all."""
    forget = AttemptManager.forget_session

    def thorough(desk: AttemptManager, session_id: int) -> None:
        others = [attempt.session_id for attempt in desk._table.all() if attempt.session_id != SELF]
        for each in dict.fromkeys([session_id, *others]):
            forget(desk, each)

    patch.setattr(AttemptManager, "forget_session", thorough)


def guesses_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    """Everything that a silent worker was ever sent is taken for still there."""
    begin = ApproximateIndex.__init__
    patch.setattr(ApproximateIndex, "__init__", lambda guesses, _names_max, ttl_s: begin(guesses, 1 << 20, ttl_s))


def a_store_that_serves_for_another_incarnation(patch: pytest.MonkeyPatch) -> None:
    """A store answers whoever has a ticket, be it for an incarnation that is gone."""
    patch.setattr(BlockServer, "_check_epoch", lambda _block_server, _request: None)


def a_store_that_believes_what_it_pulls(patch: pytest.MonkeyPatch) -> None:
    """It keeps what has arrived, under words that fit, whatever the holder had computed."""

    class Credulous(Verifier):
        async def check(
            self, blocks: Iterable[memoryview], handles: Iterable[Handle], *, epoch: int, names: Iterable[bytes]
        ) -> list[bytes | Refusal]:
            return list(await hashed(self._hashing, tuple(blocks)))

    patch.setattr(collector, "Verifier", Credulous)


BUGS: tuple[tuple[Plant, str, int], ...] = (
    (a_lease_not_released, "still held|stood still|nobody wants", 0),
    (an_epoch_not_checked, "meant for another incarnation", 4),
    (a_retry_without_dedup, "position|goes on after|tokens", 0),
    (a_missing_deadline, "had no end", 0),
    (a_digest_computed_at_pull_time, "wrong tokens", 18),
    (a_tail_block_put_in_the_index, "no full block", 0),
    (a_lease_that_is_only_released_when_everything_arrived, "nobody wants", 149),
    (a_block_freed_while_leased, "references|slot|states|in use", 0),
    (a_lost_worker_left_in_the_index, "which is lost", 0),
    (a_gap_in_the_events_ignored, "does not have", 0),
    (a_queue_without_a_bound, "are held|are queued", 25),
    (a_retry_without_a_budget, "retries for", 11),
    (a_command_obeyed_twice, "invalid_request|in use", 42),
    (a_silent_router_kept, "still serves", 22),
    (work_for_a_router_that_is_gone, "belongs to nobody", 3),
    (an_end_lost_with_a_slow_client, "had no end", 3),
    (lent_blocks_that_never_come_back, "holds .'lent_blocks'", 1),
    (redis_believed_of_another_incarnation, "Redis is believed", 14),
    (a_look_up_that_waits_as_long_as_a_write, "for Redis", 2),
    (a_restarted_redis_that_nobody_notices, "Redis has", 1),
    (one_router_that_frees_the_others_requests, "waits for work|stood still", 8),
    (guesses_without_a_bound, "are guessed of", 6),
    (a_store_that_serves_for_another_incarnation, "meant for another incarnation", 48),
    (a_store_that_believes_what_it_pulls, "wrong tokens", 19),
)
"""Each with a pattern of the promise that it breaks, and the first of the seeds from 0 on that noticed it once."""
