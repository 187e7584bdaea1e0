"""One worker over two nodes, started as its pods are: it says what one process says, and its nodes end together."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from tandem.link.address import LinkAddress
from tests.vllm.group_pods import Group, PodProcess
from tests.vllm.plain_llm import DEMO, answers

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

TOKENS = 10
LENGTHS = (5, 32, 65, 100)
START_S = 240.0
"""Two engines' worth of imports on few cores."""
ENDS_S = 60.0
"""A bound for machines on which many other things run; it takes seconds."""
EVENTS = {"TANDEM_EVENTS": "true"}
HEALTH, LINK, REST = 7480, 7400, 8000
SETTINGS = {
    "TANDEM_VLLM__THREADS": "1",
    "TANDEM_SCHEDULER__MAX_BATCHED_TOKENS": "64",
    "TANDEM_SCHEDULER__MAX_SEQUENCES": "16",
    "TANDEM_VLLM__BLOCKS": "129",
    "TANDEM_VLLM__STEP_TIMEOUT_S": "240",
}


def prompt(length: int) -> list[int]:
    return [3 + (37 * length + 11 * number * number) % 1500 for number in range(length)]


@pytest.fixture(scope="module")
def right() -> list[list[int]]:
    """What plain vLLM says in one process."""
    sampling = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}
    return answers([{"prompt": prompt(length), "sampling": sampling} for length in LENGTHS], {"model": str(DEMO)})


@pytest_asyncio.fixture(loop_scope="module")
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    found = Group(tmp_path, SETTINGS)
    found.connect()
    try:
        yield found
    finally:
        await found.close()


async def test_two_nodes_say_what_one_says_and_end_together(right: list[list[int]], group: Group) -> None:
    leader, follower = await group.start(0), await group.start(1)
    await group.until_ready(1, HEALTH, follower, START_S)
    await group.until_ready(0, HEALTH, leader, START_S)
    address = group.addresses[0]
    flags = {
        "workers": str(LinkAddress(address, LINK)),
        "host": address,
        "port": str(REST),
        "model_name": "wide",
    }
    argv = [sys.executable, "-m", "router", *(part for key, value in flags.items() for part in (f"--{key}", value))]
    router = await group.run(0, argv, os.environ)
    await group.until_ready(0, REST, router, ENDS_S)
    assert [await told(group, length) for length in LENGTHS] == right

    (rank,) = ranks_of(follower)
    os.kill(rank, signal.SIGKILL)
    assert await asyncio.gather(follower.ended(ENDS_S), leader.ended(ENDS_S)) == [1, 1]
    assert re.search("ended by SIGKILL", sentence(follower))
    assert sentence(leader) == f"node 1 of 2 ({group.addresses[1]}) failed: {sentence(follower)}"


async def test_a_follower_whose_leader_is_killed_while_they_load_ends(group: Group) -> None:
    leader = await group.start(0, EVENTS)
    follower = await group.start(1, EVENTS)
    await follower.says("all nodes are there", START_S)
    os.kill(leader.process.pid, signal.SIGKILL)
    assert await follower.ended(ENDS_S) == 1
    where = re.escape(f"{group.leader}:7403")
    assert re.fullmatch(rf"the leader {where} (hung up|is gone: .*)", sentence(follower))


def sentence(node: PodProcess) -> str:
    """Why it ended; Python's resource tracker may still say something afterwards."""
    (said,) = [line for line in node.lines if line.startswith("engine_failed: ")]
    return said.removeprefix("engine_failed: ")


async def told(group: Group, length: int) -> list[int]:
    body = {
        "model": "wide", "prompt": prompt(length), "max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip
    status, answer = await group.ask(0, REST, "POST", "/v1/completions", json.dumps(body))
    assert status == 200, answer
    found: list[int] = json.loads(answer)["choices"][0]["token_ids"]
    return found


def ranks_of(node: PodProcess) -> list[int]:
    family = psutil.Process(node.process.pid).children(recursive=True)
    return [process.pid for process in family if "Worker_TP" in " ".join(process.cmdline())]
