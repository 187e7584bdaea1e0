"""Services and loads that scaling decisions are tried on."""

from hypothesis import strategies as st

from control_plane.autoscale import DecodeFit, PoolLoad, PoolSpeed, ServiceLoad
from tandem.spec.pool import Autoscaling, Pool, Role, ScheduledFloor
from tandem.spec.rollout import Slo
from tandem.spec.service import Spec

SPEEDS = {
    "prefill": PoolSpeed(1 / 6000, cold_start_s=90.0),
    "decode": PoolSpeed(decode=DecodeFit(0.014, 0.0005, 64.0), cold_start_s=240.0),
    "unified": PoolSpeed(1 / 6000, decode=DecodeFit(0.014, 0.0005, 64.0), cold_start_s=120.0),
    "auto": PoolSpeed(1 / 6000, decode=DecodeFit(0.014, 0.0005, 64.0), cold_start_s=120.0),
}
SLO = Slo(ttft_ms=3000, tpot_ms=40)
PROMPT, ANSWER = 3000, 500
NOON = 1_767_614_400.0
"""Monday, 5 January 2026, 12:00 UTC."""


def scaled(name: str, role: Role, least: int = 1, most: int = 16, spare: int = 0, window_s: int = 300) -> Pool:
    idle_s = 60 if least == 0 else None
    scaling = Autoscaling(most, least, idle_s, window_s)
    return Pool(name, role, autoscaling=scaling, spare=spare)


def service(least: int = 1, most: int = 16, spare: int = 0, window_s: int = 300) -> Spec:
    """Prefill and decode."""
    return Spec(
        pools=(
            scaled("prefill", "prefill", least, most, spare, window_s),
            scaled("decode", "decode", least, most, spare, window_s),
        ),
        slo=SLO,
    )


def steady(prefill: int = 1, decode: int = 1, *, sequences: int = 0, queued_requests: int = 0) -> ServiceLoad:
    """So many ready workers, and what else there is."""
    pools = {"prefill": PoolLoad(prefill, prefill), "decode": PoolLoad(decode, decode)}
    return ServiceLoad(pools=pools, sequences=sequences, queued_requests=queued_requests)


counts = st.integers(0, 40)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Any service that the rules let through."""
    roles: tuple[Role, ...] = draw(
        st.sampled_from(
            [
                ("prefill", "decode"),
                ("unified",),
                ("prefill", "decode", "decode"),
                ("prefill", "unified"),
                ("auto",),
                ("auto", "auto"),
            ]
        )
    )
    sleeps = draw(st.booleans())
    pools = []
    for number, role in enumerate(roles):
        most = draw(st.integers(1, 24))
        least = 0 if sleeps else draw(st.integers(1, most))
        floors = st.builds(
            ScheduledFloor,
            st.sampled_from(["0 8 * * 1-5", "30 11 * * *", "0 0 1 * *"]),
            st.sampled_from([3600, 36_000]),
            st.integers(0, most),
        )
        scaling = Autoscaling(
            most,
            least,
            draw(st.integers(30, 900)) if sleeps else None,
            draw(st.sampled_from([0, 60, 300])),
            tuple(draw(st.lists(floors, max_size=2))),
        )
        pools.append(Pool(f"p{number}", role, autoscaling=scaling, spare=draw(st.integers(0, min(2, most - 1)))))
    return Spec(pools=tuple(pools), slo=SLO)


@st.composite
def pool_loads(draw: st.DrawFn) -> PoolLoad:
    ready = draw(st.integers(0, 20))
    starting = draw(st.lists(st.floats(0, 2000), max_size=4))
    wanted = draw(st.integers(0, 24))
    return PoolLoad(wanted, ready, tuple(starting), draw(st.floats(0, 20)))


@st.composite
def loads(draw: st.DrawFn, spec: Spec) -> ServiceLoad:
    """Anything, the totals as of that instant; `grown` makes them totals."""
    sequences = draw(st.integers(0, 3000))
    return ServiceLoad(
        pools={pool.name: draw(pool_loads()) for pool in spec.pools},
        queued_requests=draw(counts),
        queued_prompt_tokens=draw(st.integers(0, 2_000_000)),
        prefilling_prompt_tokens=draw(st.integers(0, 200_000)),
        sequences=sequences,
        prefilling=draw(st.integers(0, sequences)),
        arrived_prompt_tokens=draw(st.integers(0, 5_000_000)),
        arrived_requests=draw(st.integers(0, 2000)),
        output_tokens=draw(st.integers(0, 500_000)),
        finished_requests=draw(st.integers(0, 2000)),
        complete=draw(st.booleans()),
    )


def speeds_of(spec: Spec) -> dict[str, PoolSpeed]:
    """Of pools by whatever name."""
    return {pool.name: SPEEDS[pool.role] for pool in spec.pools}
