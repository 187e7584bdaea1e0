"""The checks of `tandem doctor`: facts in, findings out. Pure; vLLM's own verdict on its arguments is in
`engine_checks`."""

from collections.abc import Iterator, Mapping
from typing import Final

from control_plane.reconcile.capacity_check import memory_of
from tandem.apps.cli.doctor.cases import (
    Case,
    Host,
    block_tokens,
    context_tokens,
    kv_token_bytes,
    no_handoff_reason,
    stage_settings,
)
from tandem.apps.cli.doctor.findings import Finding, ok, problem, unchecked
from tandem.apps.cli.doctor.pods import refused_user, rights_of
from tandem.apps.cli.gpu_fit import fit_of
from tandem.core.errors import TandemError
from tandem.core.sizing import RUNTIME_SHARE
from tandem.devices.assigning import Assignment
from tandem.devices.topology import Gpu
from tandem.engine.vllm.stage_size import slots_needed, slots_of
from tandem.spec.worker_settings import gpu_memory_share

ALLOCATOR_VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
QUEUE_BYTES: Final = 10 * (16 << 20)
"""Bytes of a queue between vLLM's ranks in /dev/shm: ten chunks of 16 MiB, allocated as they are used. The scheduler
has one queue, and every rank has one for its answers."""
_NO_CONFIG: Final = "config.json of the model is not on this machine"
_FETCH: Final = "give its directory with --model DIRECTORY"


def stage(case: Case) -> Finding:
    """Check whether the memory for blocks that are handed off is large enough for a prompt of the whole context."""
    check = "stage"
    try:
        why = no_handoff_reason(case)
        if why is not None:
            return ok(check, case.name, f"none: {why}")
        if case.config is None:
            return unchecked(check, case.name, _NO_CONFIG, _FETCH)
        settings, token, context = stage_settings(case), kv_token_bytes(case), context_tokens(case)
        if token is None or context is None:
            return unchecked(check, case.name, "config.json describes a model whose sizes are not known here")
        if settings is None:
            advice = "set tiers.dram, or a memory limit in the pool's template"
            return unchecked(check, case.name, "how much memory its pods have is not said", advice)
        tokens = block_tokens(case)
        slots = slots_of(settings, tokens * token, tokens, context)
    except TandemError as error:
        return problem(check, case.name, error.message, "see docs/vllm.md, The stage")
    assert settings.memory_bytes is not None
    if case.memory_bytes is not None and settings.memory_bytes >= case.memory_bytes:
        said = f"{_gib(settings.memory_bytes)} of stage in {_gib(case.memory_bytes)} of memory leave nothing"
        return problem(check, case.name, said, "raise the memory limit of the pool's template, or lower tiers.dram")
    needed = slots_needed(settings, tokens, context)
    said = (
        f"{_gib(settings.memory_bytes)} / ({tokens} tokens x {token} B) = {slots} slots; a prompt of {context} "
        f"tokens needs {needed}"
    )
    return ok(check, case.name, said)


def share(case: Case) -> Finding:
    """Whether weights, activations and the KV of one sequence fit the part of a GPU's memory that a worker gets."""
    check, accelerator = "gpuMemoryShare", case.pool.accelerator
    if case.engine.device != "cuda" or case.engine.type == "simulated":
        return ok(check, case.name, "no GPU is asked for")
    if case.config is None:
        return unchecked(check, case.name, _NO_CONFIG, _FETCH)
    memory = None if accelerator is None else memory_of(accelerator)
    if accelerator is None or memory is None:
        kind = (
            "the pool names no accelerator"
            if accelerator is None
            else f"nobody knows the memory of {accelerator.type}"
        )
        return unchecked(check, case.name, kind, "set accelerator: {type: …, memory: …}")
    fraction = gpu_memory_share(case.engine, case.pool) or 1 - RUNTIME_SHARE
    if fraction * accelerator.shared_by > 1:
        taken = fraction * accelerator.shared_by
        said = f"{accelerator.shared_by} workers on a GPU with a share of {fraction:g} each take {taken:g}"
        return problem(check, case.name, said, f"set gpuMemoryShare to at most {1 / accelerator.shared_by:.3g}")
    gpus = tuple(
        Gpu(str(at), accelerator.type, str(at), memory=memory) for at in range(case.engine.parallelism.ranks)
    )
    try:
        said = fit_of(case.config, 0, case.engine, Assignment(case.name, case.pool.role, gpus, fraction))
    except TandemError as error:
        return problem(check, case.name, error.message, "more ranks, a larger share or a shorter context")
    if said.startswith("memory not checked"):
        return unchecked(check, case.name, said)
    return ok(check, case.name, f"share {fraction:g}: {said}")


def user(case: Case) -> Finding:
    """Whether the kubelet would start the pool's containers as the users that they are to run as."""
    check, refused = "runAsNonRoot", refused_user(case)
    if refused is None:
        return ok(check, case.name, "no container of its pods is to run as a user that it may not be")
    return problem(check, case.name, refused, "set runAsNonRoot: false beside it, or another user")


def memlock(case: Case) -> Finding:
    """Check whether the stage may be registered with RDMA devices: each device counts the whole stage against
    RLIMIT_MEMLOCK. Memory that GPU drivers pin does not count. The check is always about pods: on one machine the
    template that asks for such devices has no effect, so the limit of this process says nothing."""
    check = "memlock"
    if case.engine.device != "cuda" or _without_stage(case):
        return ok(check, case.name, "nothing is pinned")
    rights = rights_of(case)
    if not rights.rdma:
        return ok(check, case.name, "no RDMA device is asked for, and drivers of GPUs pin memory without that limit")
    settings = stage_settings(case)
    if settings is None or settings.memory_bytes is None:
        return unchecked(check, case.name, "how much its workers pin is not known; see stage")
    pinned = f"{_gib(settings.memory_bytes)} are pinned, for each RDMA device anew"
    if rights.ipc_lock:
        said = f"{pinned}; its containers begin as root with IPC_LOCK, with which there is no limit"
        return ok(check, case.name, said)
    said = (
        f"{pinned}; its pods run as {rights.user}, for whom IPC_LOCK is not in force, so that the limit of the "
        "nodes' container runtime counts"
    )
    advice = (
        "LimitMEMLOCK=infinity for the container runtime of the nodes (`ulimit -l` in a pod shows it), or the pool's "
        "network.lockedMemory: unlimited where workers.template.lockedMemory allows it; a worker that cannot lock "
        "memory says so, and its service has the condition KvOverTcp"
    )
    return unchecked(check, case.name, said, advice)


def shared_memory(case: Case, host: Host) -> Finding:
    """Whether /dev/shm has room for the queues between the ranks of vLLM."""
    check, ranks = "/dev/shm", case.engine.parallelism.ranks
    if case.engine.type != "vllm" or ranks == 1:
        return ok(check, case.name, "one rank needs none")
    needed = (1 + ranks) * QUEUE_BYTES * (case.pool.first_replicas if case.here else 1)
    if not case.here:
        said = f"{_gib(needed)} at most for {ranks} ranks; the operator's pods mount it in memory without a bound"
        return ok(check, case.name, said)
    if host.shm_bytes is None:
        return unchecked(check, case.name, "there is no /dev/shm to ask", "mount a tmpfs there")
    if host.shm_bytes >= needed:
        return ok(check, case.name, f"{_gib(needed)} at most for {ranks} ranks, it has {_gib(host.shm_bytes)}")
    said = f"{ranks} ranks may need {_gib(needed)}, it has {_gib(host.shm_bytes)}"
    return problem(check, case.name, said, "mount -o remount,size=… /dev/shm, or docker run --shm-size=…")


def allocator(case: Case, host: Host) -> Finding:
    """Whether torch may move a pool that a connector has registered."""
    check = "expandable_segments"
    environment: Mapping[str, str] = {**(host.environment if case.here else {}), **case.environment}
    for name in ALLOCATOR_VARIABLES:
        if not _expandable(environment.get(name, "")):
            continue
        if case.engine.device == "cuda" and not _without_stage(case):
            said = (
                f"{name} switches expandable_segments on; KV memory that can move cannot be registered by a connector"
            )
            return problem(check, case.name, said, f"leave expandable_segments out of {name}")
    return ok(check, case.name, "not used with a connector")


def ports(case_ports: Mapping[str, int], host: Host) -> Iterator[Finding]:
    """The ports of the file on this machine, by field. Workers' own, nixl's side channel among them, are free ones
    that are chosen when they start; pods have a network of their own."""
    check, taken = "ports", dict[int, str]()
    for field, port in case_ports.items():
        if port in taken and port:
            yield problem(check, "", f"{taken[port]} and {field} are both {port}", f"give {field} another number")
        elif port in host.busy:
            yield problem(check, "", f"{field} {port}: {host.busy[port]}", f"set {field}, or end what listens there")
        else:
            yield ok(check, "", f"{field} {port} is free" if port else f"{field} is chosen by the system")
        taken[port] = field


def _without_stage(case: Case) -> bool:
    try:
        return no_handoff_reason(case) is not None
    except TandemError:
        # What `stage` says of it is enough.
        return True


def _expandable(value: str) -> bool:
    options = (each.partition(":") for each in value.replace(" ", "").split(","))
    return any(name == "expandable_segments" and setting.lower() == "true" for name, _, setting in options)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
