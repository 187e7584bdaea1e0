"""The nodes of one vLLM worker: who waits for whom, what has to be the same, and that they end together."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm import group_wire
from tandem.engine.vllm.arguments import EngineArguments, Sockets, engine_arguments, facts_of, with_threads
from tandem.engine.vllm.group import GroupMember, Leader, difference
from tandem.engine.vllm.settings import Nodes, Parallelism, VllmSettings
from tandem.process.settings import load_settings
from tandem.worker.process_settings import WorkerSettings

SOON_S = 20.0
FACTS = {"dtype": "float32", "weights": "abc"}


def nodes(count: int) -> tuple[Nodes, ...]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return tuple(Nodes(count, rank, port=port) for rank in range(count))


@asynccontextmanager
async def together(count: int = 2) -> AsyncIterator[tuple[Leader, list[GroupMember], asyncio.Queue[str]]]:
    """A group that has begun; the queue has what the leader is told of lost nodes."""
    first, *others = nodes(count)
    lost: asyncio.Queue[str] = asyncio.Queue()
    leader = Leader(first, FACTS, lost.put_nowait)
    followers = [GroupMember(each, FACTS) for each in others]
    try:
        ports = await asyncio.gather(*(each.join(SOON_S) for each in followers), leader.gather(SOON_S))
        assert len(set(ports)) == 1, "all ranks meet at one port"
        yield leader, followers, lost
    finally:
        for each in followers:
            each.close("")
        leader.close("")


async def test_followers_wait_for_a_leader_that_is_not_there_yet() -> None:
    first, second = nodes(2)
    follower = GroupMember(second, FACTS)
    joining = asyncio.create_task(follower.join(SOON_S))
    await asyncio.sleep(0.1)
    leader = Leader(first, FACTS, lambda _: None)
    assert await leader.gather(SOON_S) == await joining
    leader.close("")
    assert await follower.over() is None
    follower.close("")


async def test_nobody_waits_for_ever() -> None:
    first, second = nodes(2)
    leader, follower = Leader(first, FACTS, lambda _: None), GroupMember(second, FACTS)
    with pytest.raises(TandemError, match=r"the leader 127.0.0.1:\d+ cannot be reached after 0.1 s"):
        await follower.join(0.1)
    with pytest.raises(TandemError, match=r"node 1 of 2 did not come within 0.1 s"):
        await leader.gather(0.1)
    leader.close("")
    first, second, _ = nodes(3)
    leader, follower = Leader(first, FACTS, lambda _: None), GroupMember(second, FACTS)
    gathering = asyncio.create_task(leader.gather(SOON_S))
    await asyncio.sleep(0.1)
    with pytest.raises(TandemError, match=r"does not have all nodes after 0.5 s"):
        await follower.join(0.5)
    follower.close("")
    leader.close("")
    gathering.cancel()


async def test_nodes_that_differ_are_refused_by_name_on_both_sides() -> None:
    first, second = nodes(2)
    leader, follower = Leader(first, FACTS, lambda _: None), GroupMember(second, {**FACTS, "dtype": "bfloat16"})
    ends = await asyncio.gather(leader.gather(SOON_S), follower.join(SOON_S), return_exceptions=True)
    sentence = "node 1 of 2 does not fit: dtype is bfloat16 there and float32 here"
    assert isinstance(ends[0], TandemError)
    assert (ends[0].code, ends[0].message) == ("bad_setting", sentence)
    assert isinstance(ends[1], TandemError)
    assert ends[1].message == f"the leader ended: {sentence}"
    follower.close("")
    leader.close("")
    assert difference(FACTS, dict(FACTS)) is None


async def test_a_follower_that_fails_is_told_with_its_reason() -> None:
    async with together(3) as (leader, followers, lost):
        followers[1].close("a rank was ended by SIGKILL")
        said = await asyncio.wait_for(lost.get(), SOON_S)
        assert said == "node 2 of 3 (127.0.0.1) failed: a rank was ended by SIGKILL"
        followers[0].close("")
        leader.close(said)
        assert lost.empty(), "one sentence, however many follow"


async def test_a_follower_that_vanishes_is_missed() -> None:
    async with together() as (leader, followers, lost):
        followers[0].close("")
        assert await asyncio.wait_for(lost.get(), SOON_S) == "node 1 of 2 (127.0.0.1) is ending"
        assert leader.problem is not None


async def test_followers_hear_why_their_leader_ends() -> None:
    async with together() as (leader, followers, _):
        leader.close("vLLM failed: out of memory")
        assert await asyncio.wait_for(followers[0].over(), SOON_S) == "the leader ended: vLLM failed: out of memory"


async def test_an_orderly_end_is_no_failure() -> None:
    async with together() as (leader, followers, _):
        leader.close("")
        assert await asyncio.wait_for(followers[0].over(), SOON_S) is None


async def test_a_leader_that_says_nothing_any_more_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose network is cut off closes no connection."""
    monkeypatch.setattr(group_wire, "LOST_S", 0.2)
    monkeypatch.setattr(group_wire, "BEAT_S", 0.05)
    _, second = nodes(2)
    silent = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(SOON_S), "127.0.0.1", second.port)
    with pytest.raises(TandemError, match=r"the leader 127.0.0.1:\d+ was silent for"):
        await GroupMember(second, FACTS).join(SOON_S)
    silent.close()


async def test_a_stranger_disturbs_nobody() -> None:
    async with together() as (leader, followers, lost):
        first = leader._nodes
        for said in (b"GET / HTTP/1.1\r\n\r\n", b'{"type":"Join","rank":1,"facts":{}}\n', b"x" * (1 << 17)):
            reader, writer = await asyncio.open_connection("127.0.0.1", first.port)
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(SOON_S):
                    assert b"Begin" not in await reader.read()
            writer.close()
        assert leader.problem is None
        assert lost.empty()
        leader.close("")
        assert await followers[0].over() is None


def made(settings: VllmSettings, port: int | None = None) -> EngineArguments:
    return engine_arguments(settings, SchedulerSettings(), Path("/m"), (), Sockets(Path("/s")), None, port)


WIDE = VllmSettings(parallelism=Parallelism(tensor=2), nodes=Nodes(2, 1, "first.set", 7403, "10.0.0.2"))


def test_a_node_tells_vllm_where_it_is() -> None:
    keywords = made(WIDE, 4000).keywords
    told = {key: keywords[key] for key in ("nnodes", "node_rank", "master_addr", "master_port")}
    assert told == {"nnodes": 2, "node_rank": 1, "master_addr": "first.set", "master_port": 4000}
    assert keywords["distributed_executor_backend"] == "mp"
    assert "kv_transfer_config" not in keywords
    assert made(WIDE).environment["VLLM_HOST_IP"] == "10.0.0.2"
    alone = made(VllmSettings())
    assert "nnodes" not in alone.keywords
    assert "VLLM_HOST_IP" not in alone.environment


def test_what_must_be_the_same_leaves_out_what_cannot_be() -> None:
    other = replace(WIDE, nodes=replace(WIDE.nodes, rank=0, host="10.0.0.1"))
    assert facts_of(made(other), "abc") == facts_of(made(WIDE, 4000), "abc")
    assert facts_of(made(WIDE), "abc") != facts_of(made(WIDE), "abd")
    assert "block_size" in (
        difference(facts_of(made(WIDE), ""), facts_of(made(replace(WIDE, block_tokens=64)), "")) or ""
    )


def test_a_nodes_cores_are_for_its_own_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(9)))
    assert with_threads(WIDE).threads == 8
    assert with_threads(replace(WIDE, nodes=Nodes())).threads == 4
    assert with_threads(replace(WIDE, threads=3)).threads == 3


@pytest.mark.parametrize(
    "flags",
    [
        ("--role", "decode"),
        ("--role", "prefill", "--ticket_key_file", "/k"),
        ("--engine", "torch"),
        ("--vllm.nodes.rank", "2"),
        ("--vllm.nodes.count", "0"),
        ("--vllm.nodes.port", "0"),
    ],
)
def test_nodes_that_cannot_be_are_refused(flags: tuple[str, ...]) -> None:
    good = ["--role", "unified", "--engine", "vllm", "--worker_id", "w", "--vllm.nodes.count", "2"]
    assert load_settings(WorkerSettings, [*good, "--vllm.nodes.rank", "1"], {}).follows
    with pytest.raises(TandemError) as refused:
        load_settings(WorkerSettings, [*good, *flags], {})
    assert refused.value.code == "bad_setting"


@pytest.mark.parametrize("parallelism", [Parallelism(), Parallelism(tensor=3), Parallelism(tensor=2, data=2)])
def test_ranks_spread_evenly_over_nodes(parallelism: Parallelism) -> None:
    with pytest.raises(TandemError, match=r"nodes\.count"):
        made(replace(WIDE, parallelism=parallelism))
