"""The actions that one look at a service decides on."""

from dataclasses import dataclass
from typing import Literal

from tandem.kube.kinds import Json, Ref


@dataclass(frozen=True)
class Deletion:
    """An object to be deleted, and no other of the same name."""

    ref: Ref
    uid: str


@dataclass(frozen=True)
class PlannedEvent:
    """An Event to be recorded about an object, once its status is written; `of_apply`: once the object itself is."""

    about: Json
    kind: Literal["Normal", "Warning"]
    reason: str
    sentence: str
    of_apply: bool = False


@dataclass(frozen=True)
class Plan:
    """Every part may be carried out without the others, or not at all; in this order it is done with the least harm.

    `handovers` are applied under the name of a manager that only keeps replicas as they are; `costs` are annotations
    of pods; `statuses` go to the status subresource.
    """

    handovers: tuple[Json, ...] = ()
    costs: tuple[Json, ...] = ()
    apply: tuple[Json, ...] = ()
    delete: tuple[Deletion, ...] = ()
    statuses: tuple[Json, ...] = ()
    notes: tuple[PlannedEvent, ...] = ()
    requeue_after_s: float | None = None

    @property
    def quiet(self) -> bool:
        """Whether the plan has no deletions, statuses, costs or handovers. The objects to apply may be in the cluster
        already."""
        return not (self.delete or self.statuses or self.costs or self.handovers)
