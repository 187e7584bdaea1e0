"""LoRA adapters and grammars in dispatch: who may serve a request, under which names, and what is told of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.adapters import content_hash, prompt_root
from router.dispatch.pinned_prefixes import FleetPinnedPrefixes
from router.dispatch.resume_token import decode_resume_token, encode_resume_token
from router.fleet.served import served_models
from router.generation import PrefixReplica
from router.settings import PlacementSettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.deadlines import Deadlines
from tandem.core.kv import adapter_root, chain_names, pack_tokens, tail_name, tenant_root
from tandem.core.messages import Adapter, KvDelta
from tandem.core.request import Grammar
from tandem.core.spans import Span
from tests.unit.router.dispatch.test_router_dispatch import ended
from tests.worlds.router_world import KEYRING, ROOT, Client, World

BLOCK = 16
PIRATE, POET = Adapter("pirate", "hash-of-pirate"), Adapter("poet", "hash-of-poet")
JSON = Grammar("json")
PROMPT = pack_tokens(range(64))


def scenario(
    body: Callable[[World], Awaitable[None]],
    workers: str = "p1 d1 d2",
    prefer: str = "auto",
    **attributes: dict[str, Any],
) -> None:
    """`attributes` of workers are set before they start: `adapters={"d1": (PIRATE,)}`."""
    roles = {"p": "prefill", "d": "decode"}
    settings = RouterSettings(
        placement=PlacementSettings(prefer=prefer), deadlines=Deadlines(queue_s=1.0), reuse_history_bytes_max=1 << 20
    )

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, settings)
        for worker_id in workers.split():
            worker = world.worker(worker_id, roles[worker_id[0]])
            for name, values in attributes.items():
                setattr(worker, name, values.get(worker_id, ()))
        await world.start()
        await body(world)
        await world.stop()

    run(main, limit_s=3000.0)


async def asked(world: World, **changes: Any) -> Client:
    generation = msgspec.structs.replace(world.generation(max_tokens=4), **{"prompt": PROMPT, **changes})
    client = Client(world, generation)
    world.dispatcher.start(generation, client)
    return await ended(client)


async def holds(world: World, worker_id: str, adapter_hash: str, count: int, salt: str = "") -> None:
    """The worker tells that it has the prompt's blocks under an adapter."""
    link = world.workers[worker_id].link
    assert link is not None
    root = tenant_root(adapter_root(ROOT.name(), adapter_hash), salt)
    link.state.send(KvDelta(1, count, b"".join(chain_names(root, PROMPT, BLOCK)), b""))
    await asyncio.sleep(0.1)


def spans(world: World, client: Client, name: str) -> list[Span]:
    return [each for each in world.recorder.spans(client.generation.request_id) if each.name == name]


def reasons(world: World, client: Client) -> str:
    return str(spans(world, client, "place")[0].attributes["reasons"])


# ---- names ----

HASHES = st.text(max_size=6)


@given(HASHES, HASHES, HASHES, HASHES, st.lists(st.integers(0, 99), min_size=16, max_size=64))
def test_names_under_two_adapters_or_tenants_never_meet(
    one: str, other: str, salt: str, other_salt: str, tokens: list[int]
) -> None:
    if (one, salt) == (other, other_salt):
        return
    packed = pack_tokens(tokens)
    roots = [
        tenant_root(adapter_root(ROOT.name(), each), apart) for each, apart in ((one, salt), (other, other_salt))
    ]
    first, second = (chain_names(root, packed, BLOCK) for root in roots)
    assert not set(first) & set(second)
    tails = [tail_name((root, *names)[-1], packed[-8:]) for root, names in zip(roots, (first, second), strict=True)]
    assert tails[0] != tails[1]


def test_the_router_names_blocks_as_workers_do() -> None:
    async def body(world: World) -> None:
        generation = msgspec.structs.replace(world.generation(), adapter="pirate", tenant_salt="s")
        root = prompt_root(ROOT.name(), {"pirate": "h"}, generation)
        assert root == tenant_root(adapter_root(ROOT.name(), "h"), "s")
        assert prompt_root(ROOT.name(), {}, generation) is None, "nobody computes it there"
        bare = msgspec.structs.replace(generation, adapter="")
        assert prompt_root(ROOT.name(), {"pirate": "h"}, bare) == tenant_root(ROOT.name(), "s")

    scenario(body)


# ---- who serves what ----


def test_an_adapter_goes_to_a_worker_that_has_it() -> None:
    async def body(world: World) -> None:
        client = await asked(world, adapter="pirate")
        client.check_whole()
        (submit,) = world.workers["d2"].submits
        assert (submit.adapter, submit.mode) == ("pirate", "local")
        assert not world.workers["d1"].submits
        assert "d1, p1 left out: it does not serve the adapter pirate" in reasons(world, client)

    scenario(body, prefer="disaggregated", adapters={"d2": (PIRATE,)})


def test_prefill_and_decode_both_have_it() -> None:
    async def body(world: World) -> None:
        client = await asked(world, adapter="pirate")
        client.check_whole()
        assert [submit.adapter for submit in world.workers["p1"].submits] == ["pirate"]
        assert {each.id: each.adapters for each in world.fleet.listing()}["d2"] == ("pirate", "poet")
        assert [submit.adapter for submit in world.workers["d2"].submits] == ["pirate"]

    scenario(body, prefer="disaggregated", adapters={"p1": (PIRATE,), "d2": (PIRATE, POET)})


def test_while_an_adapter_is_replaced_a_request_stays_with_one_content() -> None:
    newer = Adapter("pirate", "newer")

    async def body(world: World) -> None:
        client = await asked(world, adapter="pirate")
        client.check_whole()
        assert not world.workers["d1"].submits
        assert "its adapter pirate has other content" in reasons(world, client)
        views = world.fleet.views("demo")
        assert content_hash(views, "pirate") == "newer"
        assert content_hash(views, "nobody's") is None

    scenario(body, prefer="disaggregated", adapters={"p1": (newer,), "d1": (PIRATE,), "d2": (newer,)})


def test_a_worker_that_has_an_adapter_in_use_is_preferred_while_it_is_not_busier() -> None:
    async def body(world: World) -> None:
        first = await asked(world, adapter="pirate")
        (used,) = [name for name in ("d1", "d2") if world.workers[name].submits]
        for count in range(2, 5):
            client = await asked(world, adapter="pirate", prompt=pack_tokens([count] * 40))
            assert len(world.workers[used].submits) == count
            assert f"{used} has the adapter pirate in use already" in reasons(world, client)
        assert "in use already" not in reasons(world, first)
        waiting = [msgspec.structs.replace(world.generation(max_tokens=50), adapter="pirate") for _ in range(24)]
        clients = [Client(world, generation) for generation in waiting]
        for client in clients:
            world.dispatcher.start(client.generation, client)
        for client in clients:
            await ended(client)
        assert len(world.workers[used].submits) > 8
        assert any(worker.submits for name, worker in world.workers.items() if name != used), "it was much busier"

    scenario(body, "d1 d2", adapters={"d1": (PIRATE,), "d2": (PIRATE,)})


def test_blocks_of_an_adapter_are_found_for_it_alone() -> None:
    async def body(world: World) -> None:
        await holds(world, "d1", PIRATE.content_hash, 2)
        counted = {}
        for adapter in ("pirate", "poet", ""):
            client = await asked(world, adapter=adapter)
            counted[adapter] = spans(world, client, "place")[0].attributes["cached_tokens_expected"]
        assert counted == {"pirate": 63, "poet": 0, "": 0}

    scenario(body, "d1", prefer="local", adapters={"d1": (PIRATE, POET)})


def test_a_prompt_that_missed_because_of_the_adapter_says_so() -> None:
    async def body(world: World) -> None:
        await asked(world, adapter="pirate")
        (told,) = spans(world, await asked(world, adapter="poet"), "dispatch")
        assert told.attributes["missed"] == "other_lora"
        assert "with another LoRA" in str(told.attributes["missed_because"])
        (bare,) = spans(world, await asked(world), "dispatch")
        assert bare.attributes["missed"] == "other_lora"

    scenario(body, "d1", prefer="local", adapters={"d1": (PIRATE, POET)})


def test_a_prefix_is_kept_under_its_adapter_s_names() -> None:
    async def body(world: World) -> None:
        generation = msgspec.structs.replace(world.generation(), prompt=PROMPT, adapter="pirate")
        keeper = FleetPinnedPrefixes(world.fleet)
        names = keeper.names(PrefixReplica("d1", 1, 4), generation)
        assert names == b"".join(chain_names(adapter_root(ROOT.name(), PIRATE.content_hash), PROMPT, BLOCK))
        assert keeper.names(PrefixReplica("d1", 1, 4), msgspec.structs.replace(generation, adapter="nobody's")) == b""

    scenario(body, "d1", adapters={"d1": (PIRATE,)})


# ---- grammars ----


def test_a_grammar_goes_to_workers_whose_engine_has_them() -> None:
    async def body(world: World) -> None:
        client = await asked(world, grammar=JSON)
        client.check_whole()
        assert world.workers["d2"].submits[0].grammar == JSON
        assert not world.workers["d1"].submits
        assert not world.workers["p1"].submits
        assert "its engine has no grammar" in reasons(world, client)
        plain = await asked(world)
        assert "left out" not in reasons(world, plain)

    scenario(body, prefer="disaggregated", features={"d2": ("grammar",)})


def test_without_such_a_worker_the_request_ends_with_the_reason() -> None:
    async def body(world: World) -> None:
        client = await asked(world, grammar=JSON)
        assert client.error is not None
        assert client.error.code == "no_workers"
        assert "its engine has no grammar" in client.error.message

    scenario(body)


def test_another_attempt_has_grammar_and_adapter_too() -> None:
    async def body(world: World) -> None:
        generation = msgspec.structs.replace(
            world.generation(max_tokens=8), prompt=PROMPT, grammar=JSON, adapter="pirate", special_text=True
        )
        client = Client(world, generation)
        world.dispatcher.start(generation, client)
        await asyncio.sleep(0.01)
        (first,) = [worker for worker in world.workers.values() if worker.submits]

        def kill() -> None:
            if len(client.tokens[0]) == 3:
                client.on_output = None
                first.die()

        client.on_output = kill
        (await ended(client)).check_whole()
        (other,) = [worker for worker in world.workers.values() if worker is not first]
        (again,) = other.submits
        assert (again.grammar, again.adapter, again.special_text) == (JSON, "pirate", True)
        assert len(again.branches[0].forced) == 3

    both = {"d1": (PIRATE,), "d2": (PIRATE,)}
    scenario(body, "d1 d2", adapters=both, features={"d1": ("grammar",), "d2": ("grammar",)})


def test_another_router_has_them_as_well() -> None:
    async def body(world: World) -> None:
        generation = msgspec.structs.replace(
            world.generation(), resume=b"facts", grammar=JSON, adapter="pirate", special_text=True
        )
        sealed = decode_resume_token(KEYRING, encode_resume_token(KEYRING, generation, 0))
        assert sealed is not None
        again = sealed.generation(generation.received)
        assert (again.grammar, again.adapter, again.special_text) == (JSON, "pirate", True)

    scenario(body)


# ---- what clients may ask for ----


def test_adapters_are_served_beside_their_model() -> None:
    async def body(world: World) -> None:
        assert [(each.name, each.parent, each.features) for each in world.dispatcher.models()] == [
            ("demo", "", ("adapters", "grammar")),
            ("pirate", "demo", ("adapters", "grammar")),
            ("poet", "demo", ("adapters", "grammar")),
        ]

    features = {"p1": ("else",), "d1": ("grammar",), "d2": ("adapters",)}
    scenario(
        body, adapters={"p1": (Adapter("only prefill", "x"),), "d1": (POET,), "d2": (PIRATE, POET)}, features=features
    )


def test_a_model_s_name_goes_before_an_adapter_s() -> None:
    async def body(world: World) -> None:
        hellos = [worker.hello() for worker in world.workers.values()]
        assert [each.name for each in served_models(hellos, {"demo": hellos[-1]})] == ["demo"]

    scenario(body, "d1", adapters={"d1": (Adapter("demo", "x"),)})
