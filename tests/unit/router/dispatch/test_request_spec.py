"""A request's specification reaches workers and other routers whole, whatever fields it has."""

import msgspec

from router.dispatch.resume_token import decode_resume_token, encode_resume_token
from router.generation import Generation
from tandem.core.messages import Adapter, Submit
from tandem.core.request import Grammar, RequestSpec, Sampling, Stopping, spec_fields
from tandem.core.spans import TraceContext
from tests.unit.router.dispatch.test_router_adapters import PROMPT, asked, scenario
from tests.worlds.router_world import KEYRING, World

SPEC = RequestSpec(
    prompt=PROMPT,
    sampling=Sampling(temperature=0.5, logit_bias=((7, -1.5),)),
    stopping=Stopping(max_tokens=4, stop_token_ids=(9,)),
    tenant_salt="salt",
    priority=3,
    kv_bytes_max=1 << 30,
    grammar=Grammar("regex", "a+"),
    adapter="pirate",
    special_text=True,
)


def test_the_specification_above_has_a_value_of_its_own_for_every_field() -> None:
    plain = RequestSpec(prompt=b"", sampling=Sampling(), stopping=Stopping(max_tokens=1))
    same = [name for name in RequestSpec.__struct_fields__ if getattr(SPEC, name) == getattr(plain, name)]
    assert not same, "give these a value in SPEC, so that the tests below see them"


def test_both_workers_of_a_request_get_all_of_it_over_the_wire() -> None:
    async def test(world: World) -> None:
        client = await asked(world, **spec_fields(SPEC))
        assert client.error is None
        submits = [submit for worker in world.workers.values() for submit in worker.submits]
        assert {submit.mode for submit in submits} == {"prefill", "decode"}
        for submit in submits:
            read = msgspec.msgpack.decode(msgspec.msgpack.encode(submit), type=Submit)
            assert spec_fields(read) == spec_fields(SPEC)

    has = {name: (Adapter("pirate", "hash"),) for name in ("p1", "d1", "d2")}
    scenario(test, prefer="disaggregated", adapters=has, features=dict.fromkeys(has, ("adapters", "grammar")))


def test_a_resume_token_brings_all_of_it_to_another_router() -> None:
    generation = Generation(
        **spec_fields(SPEC),
        request_id="req",
        model="m",
        tenant="t",
        n=1,
        seed=2,
        timeout_s=4.0,
        received=5.0,
        received_wall=6.0,
        trace=TraceContext("a", "b"),
        resume=b"f",
    )
    read = decode_resume_token(KEYRING, encode_resume_token(KEYRING, generation, 7))
    assert read is not None
    assert read.generation(5.0) == generation
