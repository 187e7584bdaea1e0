"""What Tandem reads of vLLM's records is in them, and its events about blocks are read as they are meant."""

import inspect
from importlib import import_module
from typing import Any

import msgspec
import pytest

from tandem.engine.vllm import outputs
from tandem.engine.vllm.names import AllBlocksCleared, BlockRemoved, BlockStored, decode_batch

FIELDS = (
    ("vllm.v1.engine", "EngineCoreOutput", "new_token_ids new_logprobs finish_reason events prefill_stats"),
    ("vllm.v1.engine", "EngineCoreOutputs", "outputs scheduler_stats timestamp"),
    ("vllm.v1.engine", "EngineCoreRequest", "request_id sampling_params"),
    ("vllm.v1.engine", "EngineCoreEvent", "type timestamp"),
    ("vllm.v1.outputs", "LogprobsLists", "logprob_token_ids logprobs"),
    (
        "vllm.v1.metrics.stats", "SchedulerStats",
        "num_running_reqs num_waiting_reqs num_skipped_waiting_reqs kv_cache_usage spec_decoding_stats",
    ),
    ("vllm.v1.metrics.stats", "PrefillStats",
     "num_computed_tokens num_local_cached_tokens num_external_cached_tokens"),
    ("vllm.v1.spec_decode.metrics", "SpecDecodingStats",
     "num_drafts num_draft_tokens num_accepted_tokens_per_pos"),
    (
        "vllm.v1.core.sched.output", "SchedulerOutput",
        "total_num_scheduled_tokens num_scheduled_tokens kv_connector_block_state scheduled_new_reqs "
        "scheduled_cached_reqs",
    ),
    ("vllm.v1.core.sched.output", "NewRequestData", "req_id num_computed_tokens"),
    ("vllm.v1.core.sched.output", "CachedRequestData", "req_ids num_computed_tokens"),
    ("vllm.v1.kv_cache_interface", "KVCacheConfig", "kv_cache_groups num_blocks"),
    ("vllm.v1.engine.core_client", "BackgroundResources", "engine_manager"),
)  # fmt: skip


def _names(record: Any) -> set[str]:
    fields = getattr(record, "__struct_fields__", None) or getattr(record, "_fields", None)
    return set(fields or record.__dataclass_fields__)


@pytest.mark.parametrize(("module", "record", "read"), FIELDS)
def test_a_field_is_there(module: str, record: str, read: str) -> None:
    assert set(read.split()) <= _names(getattr(import_module(module), record))


@pytest.mark.parametrize(
    ("module", "name", "read"),
    [
        ("vllm.v1.request", "Request", ("request_id", "kv_transfer_params", "num_prompt_tokens")),
        (
            "vllm.v1.core.sched.scheduler",
            "Scheduler",
            ("connector", "requests", "finished_recving_kv_req_ids", "kv_holding_waiting"),
        ),
        ("vllm.v1.engine.core_client", "AsyncMPClient", ("outputs_queue", "resources")),
        ("vllm.v1.executor.multiproc_executor", "MultiprocExecutor", ("workers",)),
        ("vllm.v1.engine.async_llm", "AsyncLLM", ("engine_core", "input_processor", "vllm_config")),
    ],
)
def test_an_attribute_is_set(module: str, name: str, read: tuple[str, ...]) -> None:
    """These are no records: the attribute is assigned somewhere in the class or in those it extends."""
    found = getattr(import_module(module), name)
    source = "".join(inspect.getsource(each) for each in found.__mro__ if each.__module__.startswith("vllm"))
    for attribute in read:
        assert f"self.{attribute}" in source or hasattr(found, attribute), attribute


def test_numbers_mean_what_they_meant() -> None:
    engine: Any = import_module("vllm.v1.engine")
    assert engine.EngineCoreEventType.PREEMPTED == outputs._PREEMPTED
    for reason in ("stop", "length"):
        assert outputs._FINISHES[int(engine.FinishReason[reason.upper()])] == reason


def test_events_about_blocks_are_read() -> None:
    events: Any = import_module("vllm.distributed.kv_events")
    stored = events.BlockStored(
        block_hashes=[b"one", b"two"], parent_block_hash=None, token_ids=[1, 2, 3, 4], block_size=2, lora_id=None,
        medium="GPU", lora_name=None, extra_keys=[("salt",), None], session_id="7",
    )  # fmt: skip
    removed = events.BlockRemoved(block_hashes=[b"one"], medium="GPU")
    batch = events.KVEventBatch(ts=1.5, events=[stored, removed, events.AllBlocksCleared()], data_parallel_rank=0)
    read = decode_batch(msgspec.msgpack.encode(batch))
    assert read.events == [
        BlockStored([b"one", b"two"], None, [1, 2, 3, 4], 2, [["salt"], None], "7"),
        BlockRemoved([b"one"]),
        AllBlocksCleared(),
    ]
