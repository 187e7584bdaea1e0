"""The part of a vLLM request that concerns the stage (`SamplingParams.extra_args["kv_transfer_params"]`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

NO_SLOT: Final = -1
"""Instead of a slot: the block has none. Either the engine is expected to have it itself, or it does not come."""


@dataclass(frozen=True)
class StageParams:
    """`slots[i]` is the slot of prompt block i. The first `load` tokens can come from slots. Blocks from `save` on
    are to be copied to their slots, those of `held` excepted: they are complete there. With `first` the load also
    awaits the request's next position. `parent` is the name of the prompt's last full block, or the root's where it
    has none; without it the blocks of the request's output are not wanted. Another sequence of the same work has the
    same parameters but for `sequence`, and saves nothing of the prompt.
    """

    work: int
    sequence: int
    slots: tuple[int, ...]
    load: int
    save: int
    held: tuple[int, ...] = ()
    first: bool = False
    parent: bytes | None = None

    def as_dict(self) -> dict[str, object]:
        """The form in which it travels."""
        return {
            "tandem": True,
            "work": self.work,
            "sequence": self.sequence,
            "slots": list(self.slots),
            "load": self.load,
            "save": self.save,
            "held": list(self.held),
            "first": self.first,
            "parent": None if self.parent is None else self.parent.hex(),
        }


def stage_params(params: Mapping[str, Any] | None) -> StageParams | None:
    """The stage parameters in a request's `kv_transfer_params`, or None for a request that is not the stage's."""
    if not params or params.get("tandem") is not True:
        return None
    return StageParams(
        work=params["work"],
        sequence=params["sequence"],
        slots=tuple(params["slots"]),
        load=params["load"],
        save=params["save"],
        held=tuple(params["held"]),
        first=params["first"],
        parent=None if params["parent"] is None else bytes.fromhex(params["parent"]),
    )


def for_sequence(params: dict[str, object], sequence: int) -> dict[str, object]:
    """The parameters of another sequence of the same work: it loads the same blocks and saves none of them."""
    slots = params["slots"]
    assert isinstance(slots, list)
    return {**params, "sequence": sequence, "save": len(slots)}
