"""Which workers get a KV connector: from what a model keeps, the worker's role and what it was told."""

from contextlib import suppress

import pytest

from tandem.core.config_facts import CacheKinds, Windows
from tandem.core.errors import TandemError
from tandem.engine.vllm.exchange import TRANSFERS, decide, wrong_rotation
from tandem.engine.vllm.settings import KV_DTYPES

PLAIN = CacheKinds()
MIXED = CacheKinds(windows=Windows.SOME)
ALL = CacheKinds(windows=Windows.ALL)
STATE = CacheKinds("layers of recurrent state")


@pytest.mark.parametrize("role", ["unified", "prefill", "decode"])
@pytest.mark.parametrize("transfer", ["auto", "always"])
def test_keys_and_values_of_all_layers_are_exchanged(role: str, transfer: str) -> None:
    found = decide(PLAIN, transfer, role)
    assert (found.connector, found.kv_events, found.reason) == (True, True, "")


def test_kv_that_depends_on_who_computed_it_is_not_exchanged() -> None:
    inexact = CacheKinds(inexact="kernels differ")
    found = decide(inexact, "auto", "unified")
    assert (found.connector, found.kv_events, found.reason) == (False, True, "kernels differ")
    with pytest.raises(TandemError, match="kernels differ; use role unified"):
        decide(inexact, "auto", "decode")


PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
OFF = ["-rotary_embedding"]


@pytest.mark.parametrize("rope", [None, {}, PLAIN_ROPE])
@pytest.mark.parametrize(
    "compilation", [None, {}, {"custom_ops": ["all"]}, {"custom_ops": ["none", "+rotary_embedding"]}]
)
def test_unscaled_latents_on_a_cpu_are_not_handed_over(rope: dict[str, object] | None, compilation: object) -> None:
    why = wrong_rotation(rope, compilation)
    assert '{"custom_ops": ["-rotary_embedding"]}' in why
    assert not decide(CacheKinds(inexact=why), "auto", "unified").connector


@pytest.mark.parametrize(
    ("rope", "compilation"),
    [
        ({"rope_type": "yarn", "factor": 40.0}, None),
        ({"rope_type": "deepseek_yarn", "factor": 40.0}, {"custom_ops": ["all"]}),
        (PLAIN_ROPE, {"custom_ops": OFF}),
        (PLAIN_ROPE, {"custom_ops": ["none"]}),
        (None, {"custom_ops": ["all", *OFF]}),
    ],
)
def test_latents_that_the_kernel_does_not_turn_are(rope: dict[str, object] | None, compilation: object) -> None:
    assert wrong_rotation(rope, compilation) == ""


@pytest.mark.parametrize("kinds", [STATE, ALL], ids=["state", "windows everywhere"])
def test_what_cannot_be_exchanged_is_served_without_a_connector(kinds: CacheKinds) -> None:
    for transfer in ("auto", "never"):
        found = decide(kinds, transfer, "unified")
        assert (found.connector, found.kv_events) == (False, False)
        assert found.reason


@pytest.mark.parametrize("kinds", [STATE, ALL], ids=["state", "windows everywhere"])
@pytest.mark.parametrize(("role", "transfer"), [("prefill", "auto"), ("decode", "always"), ("unified", "always")])
def test_who_has_to_exchange_it_is_refused_and_told_what_to_do(kinds: CacheKinds, role: str, transfer: str) -> None:
    with pytest.raises(TandemError, match="use role unified") as refused:
        decide(kinds, transfer, role)
    assert refused.value.code == "bad_setting"


def test_windows_in_some_layers_are_kept_small_unless_kv_is_to_be_exchanged() -> None:
    alone = decide(MIXED, "auto", "unified")
    assert (alone.connector, alone.kv_events) == (False, False)
    assert "always" in alone.reason
    assert decide(MIXED, "always", "unified").connector
    assert decide(MIXED, "auto", "prefill").connector
    assert decide(MIXED, "auto", "decode").connector


def test_a_role_that_hands_over_cannot_be_told_not_to() -> None:
    assert not decide(PLAIN, "never", "unified").connector
    assert decide(PLAIN, "never", "unified").kv_events
    with pytest.raises(TandemError) as refused:
        decide(PLAIN, "never", "decode")
    assert refused.value.param == "kv_transfer"


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_pages_with_scales_are_not_exchanged(dtype: str) -> None:
    plain = dtype in ("auto", "float16", "bfloat16") or dtype in ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
    assert decide(PLAIN, "auto", "unified", dtype).connector is plain


@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("kinds", [PLAIN, MIXED, ALL, STATE], ids=["plain", "mixed", "all", "state"])
def test_there_is_a_reason_exactly_where_there_is_no_connector(kinds: CacheKinds, transfer: str) -> None:
    with suppress(TandemError):
        found = decide(kinds, transfer, "unified")
        assert found.connector is not bool(found.reason)
