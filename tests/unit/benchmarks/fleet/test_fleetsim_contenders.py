"""Who competes where, by name; ours on equal terms does nothing that no peer does; all get the same workers."""

from dataclasses import replace

import pytest

from benchmarks.fleet.contenders import (
    CHUNKING,
    CONTENDERS,
    EQUAL_TERMS,
    OURS,
    chunked,
    contenders,
    decider_of,
)
from benchmarks.fleet.fleet import roles, simulate
from benchmarks.fleet.peers.catalogue import CURRENT
from benchmarks.fleet.scenarios import generated
from benchmarks.fleet.workload import Request

UNIFIED, APART = roles(unified=4), roles(prefill=2, decode=2)


def played(name: str, layout: tuple[str, ...]) -> list[Request]:
    """A burst on few workers, which share what is cached unevenly."""
    workload = generated.generated(generated.traffic("bimodal"), 3, 14.0, 20.0).workload
    simulate(generated.fleet(layout), decider_of(name, generated.ours_settings(), 1), workload)
    return list(workload.requests)


@pytest.mark.parametrize("layout", [UNIFIED, APART], ids=["unified", "apart"])
def test_names_are_known_and_can_be_listed_on_a_command_line(layout: tuple[str, ...]) -> None:
    names = contenders(layout)
    assert set(names) <= set(CONTENDERS)
    assert len(set(names)) == len(names)
    assert not any("," in name for name in CONTENDERS)
    assert names[:2] == (OURS, EQUAL_TERMS)
    assert set(CURRENT) - set(names) == (set() if layout is APART else {"dynamo kv conditional"})
    with pytest.raises(KeyError):
        decider_of("nobody", generated.ours_settings(), 1)


def test_on_equal_terms_nothing_is_fetched_and_every_prompt_is_computed_by_a_prefill_worker() -> None:
    assert any(request.prefill < 0 for request in played(OURS, APART))
    assert any(request.sources for request in played(OURS, UNIFIED))
    apart = played(EQUAL_TERMS, APART)
    assert all(request.prefill >= 0 and not request.sources for request in apart)
    unified = played(EQUAL_TERMS, UNIFIED)
    assert not any(request.sources or request.fetched for request in unified)
    assert any(request.reused for request in unified)


def test_equal_terms_change_nothing_else() -> None:
    settings = generated.ours_settings()
    equal = settings.equal_terms()
    placement = replace(settings.placement, fetch=False, prefer="disaggregated")
    assert equal == replace(settings, placement=placement)


@pytest.mark.parametrize(
    ("chunking", "tokens", "itl_target_s"),
    [("ITL budget", 2_048, 0.05), ("8192", 8_192, None), ("2048", 2_048, None)],
)
def test_workers_are_those_of_tandem_or_have_fixed_chunks(
    chunking: str, tokens: int, itl_target_s: float | None
) -> None:
    worker = chunked(generated.fleet(UNIFIED).worker, chunking)
    assert (worker.max_batched_tokens, worker.itl_target_s) == (tokens, itl_target_s)
    assert worker.kv_tokens == generated.fleet(UNIFIED).worker.kv_tokens
    assert set(CHUNKING) == {"ITL budget", "8192", "2048"}
