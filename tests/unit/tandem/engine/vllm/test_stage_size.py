"""How large a stage is: enough for a prompt of the whole context, out of what the pod has."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.protocol import EngineRequest
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.engine.vllm.stage_size import default_bytes, slots_needed, slots_of
from tandem.engine.vllm.stage_state import StageState
from tandem.process.settings import load_settings
from tandem.worker.engines import stage_settings
from tandem.worker.host_memory import host_memory_bytes
from tandem.worker.process_settings import WorkerSettings

GIB = 1 << 30


@given(
    context=st.integers(1, 3000),
    block=st.sampled_from([1, 16, 32]),
    share=st.sampled_from([0.1, 0.3, 0.5, 0.9]),
    mode=st.sampled_from(["prefill", "decode"]),
)
def test_a_stage_that_starts_takes_a_prompt_of_the_whole_context_in_its_share(
    context: int, block: int, share: float, mode: str
) -> None:
    settings = StageSettings(export_share=share, context_share=share if mode == "prefill" else 1 - share)
    slots = slots_needed(settings, block, context)
    books = StageState(slots, block, (0,), (0,), settings)
    lease = "lease" if mode == "prefill" else ""
    work = EngineRequest(
        work_id=1,
        mode=mode,
        prompt=pack_tokens(tuple(range(context))),
        branches=(ChildRequest(0, 1),),
        sampling=Sampling(),
        stopping=Stopping(4),
        root=bytes(16),
        deadline=8.0,
        lease_id=lease,
        lease_s=2.0,
    )
    books.open(work, 0.0, save=True)
    books.look(0.0)
    assert [admitted for admitted, _ in books.admitted] == [1]
    blocks = -(-context // block)
    share_of = settings.context_share
    assert share_of is not None
    assert int(share_of * slots) >= blocks, "it fits its share, beside as much of the other kind"
    assert int(share_of * (slots - 1)) < blocks or slots == 2, "no slot more than that"


def test_a_stage_that_is_too_small_says_what_it_needs() -> None:
    settings = StageSettings(memory_bytes=GIB, context_share=0.5)
    with pytest.raises(TandemError) as caught:
        slots_of(settings, 5 << 20, 16, 32768)
    assert caught.value.code == "bad_setting"
    assert caught.value.message == (
        "the stage has 1.00 GiB and needs 20.00 GiB: 4096 slots of 16 tokens of 327680 bytes, as one prompt may have "
        "32768 tokens and 50% of the slots; set tiers.dram (tiers.dram_bytes of the worker) to at least 20480Mi, or "
        "serve a shorter context (contextTokens)"
    )
    assert slots_of(StageSettings(memory_bytes=20 * GIB, context_share=0.5), 5 << 20, 16, 32768) == 4096


@pytest.mark.parametrize(
    ("role", "given", "bytes_", "share"),
    [
        ("prefill", {}, 8 * GIB, 0.5),
        ("decode", {"--stage.sharers": "4"}, 2 * GIB, 0.5),
        ("decode", {"--tiers.dram_bytes": str(3 * GIB), "--stage.export_share": "0.75"}, 3 * GIB, 0.25),
        ("unified", {"--stage.memory_bytes": str(GIB)}, GIB, None),
    ],
)
def test_the_dram_tier_is_the_stage(role: str, given: dict[str, str], bytes_: int, share: float | None) -> None:
    found = stage_settings(_worker(role, given), 32 * GIB)
    assert (found.memory_bytes, found.context_share) == (bytes_, share)


def test_two_sizes_of_one_memory_are_refused() -> None:
    with pytest.raises(TandemError, match="the same memory"):
        stage_settings(_worker("decode", {"--tiers.dram_bytes": "4096", "--stage.memory_bytes": "8192"}), GIB)


def _worker(role: str, given: dict[str, str]) -> WorkerSettings:
    flags = [part for pair in given.items() for part in pair]
    basics = ["--worker_id", "w", "--role", role, "--engine", "vllm", "--ticket_key_file", "key"]
    return load_settings(WorkerSettings, [*basics, *flags], {})


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, 16 * GIB), ("max\n", 16 * GIB), (f"{GIB}\n", GIB), (f"{64 * GIB}\n", 16 * GIB)]
)
def test_the_memory_of_a_pod_is_its_limit(tmp_path: Path, limit: str | None, expected: int) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal:       {16 << 20} kB\nMemFree:  1 kB\n")
    if limit is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(limit)
    assert host_memory_bytes(tmp_path) == expected
    assert default_bytes(expected, 2) == expected // 8
