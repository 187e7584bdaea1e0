"""LoRA adapters of requests: whose content counts, and the root names of what is computed with them. Pure.

A name carries the adapter's content hash before the tenant's salt, as a worker derives it
(`tandem.worker.attempt_manager`)."""

from collections import Counter
from collections.abc import Mapping, Sequence

from router.generation import Generation
from router.placement.decision import Needs
from router.placement.view import WorkerView
from tandem.core.kv import adapter_root, tenant_root


def content_hash(workers: Sequence[WorkerView], adapter: str) -> str | None:
    """The content hash that most workers have under an adapter's name; None when no worker has the adapter. While the
    content is being replaced, a request stays with one content on all its workers."""
    if not adapter:
        return ""
    found = Counter(sorted(worker.adapters[adapter] for worker in workers if adapter in worker.adapters))
    return found.most_common(1)[0][0] if found else None


def features_of(generation: Generation) -> tuple[str, ...]:
    """Features beyond the common ones that the engine of a request's worker must have (`Hello.features`)."""
    asked = {
        "grammar": generation.grammar,
        "images": generation.images or None,
        "prompt_logprobs": generation.sampling.prompt_logprobs,
    }
    return tuple(feature for feature, value in asked.items() if value is not None)


def needs_of(generation: Generation, workers: Sequence[WorkerView]) -> Needs | None:
    """The needs of a request that not every worker meets; None where it has none."""
    features = features_of(generation)
    if not features and not generation.adapter:
        return None
    return Needs(features, generation.adapter, content_hash(workers, generation.adapter) or "")


def prompt_root(root: bytes, adapters: Mapping[str, str], generation: Generation) -> bytes | None:
    """The root name of a prompt's blocks on a worker with this root and these adapters (content hashes by name);
    None when it does not have the prompt's."""
    if not generation.adapter:
        return tenant_root(root, generation.tenant_salt)
    adapter_hash = adapters.get(generation.adapter)
    return None if adapter_hash is None else tenant_root(adapter_root(root, adapter_hash), generation.tenant_salt)
