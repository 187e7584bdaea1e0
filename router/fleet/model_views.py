"""What placement reads of the workers of one model, brought together once per worker that joins or leaves. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from router.placement import WorkerView


class ModelViews(NamedTuple):
    """The workers of a model in the order of their ids, their roots with the tokens of a block there, and their
    revisions but for those of stores."""

    views: tuple[WorkerView, ...] = ()
    roots: tuple[tuple[bytes, int], ...] = ()
    revisions: tuple[str, ...] = ()


NO_WORKERS = ModelViews()


def by_model(views: Iterable[WorkerView]) -> dict[str, ModelViews]:
    """All workers, by their model."""
    found: dict[str, list[WorkerView]] = {}
    for view in sorted(views, key=lambda view: view.worker_id):
        found.setdefault(view.model, []).append(view)
    return {model: _of_model(each) for model, each in found.items()}


def _of_model(views: list[WorkerView]) -> ModelViews:
    roots = dict.fromkeys((view.root, view.layout.block_tokens) for view in views)
    revisions = dict.fromkeys(view.revision for view in views if view.role != "store")
    return ModelViews(tuple(views), tuple(roots), tuple(revisions))
