"""The models that clients may ask for, and the LoRA adapters beside them, from how workers introduced themselves.
Pure."""

from collections.abc import Iterable, Mapping

from router.generation import ServedModel
from tandem.core.messages import Hello


def served_models(hellos: Iterable[Hello], known: Mapping[str, Hello]) -> tuple[ServedModel, ...]:
    """The models in `known` (for each, how one of its workers introduced itself) with what any of their workers,
    `hellos`, can do; after them the adapters, by name. A model's name goes before an adapter's."""
    features: dict[str, dict[str, None]] = {model: {} for model in known}
    parents: dict[str, str] = {}
    for hello in hellos:
        if hello.model in features and hello.role not in ("prefill", "store"):
            features[hello.model] |= dict.fromkeys(hello.features)
            for adapter in hello.adapters:
                parents.setdefault(adapter.name, hello.model)
    bare = [_served(known[model], model, "", features[model]) for model in known]
    adapters = [
        _served(known[parent], name, parent, features[parent])
        for name, parent in sorted(parents.items())
        if name not in known
    ]
    return (*bare, *adapters)


def _served(hello: Hello, name: str, parent: str, features: Iterable[str]) -> ServedModel:
    return ServedModel(name, hello.context_tokens, hello.eos_token_ids, parent, tuple(sorted(features)))
