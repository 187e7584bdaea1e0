"""vLLM's KV connector: vLLM imports this module by name in its EngineCore and in every rank, and builds the class
once for each role.

It follows vLLM 0.32's interface (`KVConnectorBase_V1`) and decides nothing itself: `scheduler_side` decides what is
loaded and saved, and `worker_side` does it. Settings come in `kv_connector_extra_config`: `socket` is the path of the
stage's conduit.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.engine.vllm.connector.orders import StepOrders
from tandem.engine.vllm.connector.rank_config import open_worker
from tandem.engine.vllm.connector.scheduler_side import TandemConnectorScheduler
from tandem.engine.vllm.connector.worker_side import TandemConnectorWorker
from tandem.engine.vllm.internals import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole

if TYPE_CHECKING:
    import torch

    from tandem.engine.vllm.internals import (
        AttentionMetadata,
        ForwardContext,
        KVCacheBlocks,
        KVCacheConfig,
        Request,
        SchedulerOutput,
        VllmConfig,
    )


class StepMetadata(KVConnectorMetadata):
    """The orders of one step, in the form vLLM carries to its workers."""

    def __init__(self, orders: StepOrders) -> None:
        self.orders = orders


class TandemConnector(KVConnectorBase_V1):
    """The KV connector in both roles. vLLM keeps the blocks of a finished request until nothing copies from them any
    more: then the request is reported as sent. The blocks of a preempted request are protected only by the order of
    operations on the device."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._scheduler: TandemConnectorScheduler | None = None
        self._worker: TandemConnectorWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
            # On a CPU vLLM turns both off for latents: a chunk there does not attend to what was before it.
            whole = not (cache.enable_prefix_caching or scheduler.enable_chunked_prefill)
            self._scheduler = TandemConnectorScheduler(cache.block_size, whole=whole)

    @property
    def requires_kv_delivery(self) -> bool:
        """False: what is saved lies in the stage before a request ends, so finishing hands nothing over."""
        return False

    @property
    def _scheduling(self) -> TandemConnectorScheduler:
        assert self._scheduler is not None, "the scheduler's role was asked of a worker"
        return self._scheduler

    # -- scheduler --

    def on_new_request(self, request: "Request") -> None:
        self._scheduling.add(request)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int, bool]:
        return self._scheduling.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        self._scheduling.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepMetadata:
        return StepMetadata(self._scheduling.orders(scheduler_output))

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._scheduling.finished(request, block_ids), None

    # -- worker --

    def register_kv_caches(self, kv_caches: "Mapping[str, torch.Tensor]") -> None:
        """Connect to the stage. Raises a `TandemError` for a cache that cannot be exchanged: the engine stops."""
        self._worker = open_worker(self._vllm_config, self._kv_cache_config, kv_caches)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, StepMetadata)
        if self._worker is not None:
            self._worker.begin_step(connector_metadata.orders)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        """Loads begin in `wait_for_save`, when the step's own computing has been launched."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: no layer of a running request is ever loaded."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: "torch.Tensor", attn_metadata: "AttentionMetadata", **kwargs: Any
    ) -> None:
        """Save a block's first layers while its last are computed, where copies run beside the computing."""
        if self._worker is not None:
            self._worker.layer_computed(layer_name)

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.end_step()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._worker is None:
            return None, None
        return self._worker.report(finished_req_ids)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.failed_blocks() if self._worker is not None else set()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
