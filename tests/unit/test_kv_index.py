"""The in-memory index against the obvious model: a set of names for each worker."""

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.memory_index import MemoryIndex

WORKERS = ("a", "b", "c", "d")
NAMES = tuple(bytes([number]) * 16 for number in range(12))

names = st.lists(st.sampled_from(NAMES), max_size=8)
steps = st.lists(
    st.tuples(st.sampled_from(("stored", "removed", "replace", "drop")), st.sampled_from(WORKERS), names), max_size=40
)


def apply(index: MemoryIndex, model: dict[str, set[bytes]], step: tuple[str, str, list[bytes]]) -> None:
    action, worker, changed = step
    match action:
        case "stored":
            index.stored(worker, changed)
            model.setdefault(worker, set()).update(changed)
        case "removed":
            index.removed(worker, changed)
            model.setdefault(worker, set()).difference_update(changed)
        case "replace":
            index.replace(worker, changed)
            model[worker] = set(changed)
        case _:
            index.drop(worker)
            model.pop(worker, None)


def leading(model: dict[str, set[bytes]], wanted: list[bytes]) -> dict[str, int]:
    counts = {}
    for worker, held in model.items():
        count = 0
        while count < len(wanted) and wanted[count] in held:
            count += 1
        if count:
            counts[worker] = count
    return counts


@given(steps=steps, wanted=st.lists(names, min_size=1, max_size=4))
def test_it_agrees_with_a_set_of_names_per_worker(
    steps: list[tuple[str, str, list[bytes]]], wanted: list[list[bytes]]
) -> None:
    index, model = MemoryIndex(), dict[str, set[bytes]]()
    for step in steps:
        apply(index, model, step)
        for names_wanted in wanted:
            assert index.longest(names_wanted) == leading(model, names_wanted)


def test_a_dropped_worker_is_unknown_at_once_and_its_room_is_used_again() -> None:
    index = MemoryIndex()
    many = tuple(number.to_bytes(16, "little") for number in range(5000))
    index.stored("lost", many)
    index.stored("kept", many[:10])
    index.drop("lost")
    assert index.longest(many) == {"kept": 10}
    for round_number in range(200):
        index.replace("flapping", many[round_number : round_number + 50])
    assert index.longest(many) == {"kept": 10}
    assert index.longest(many[199:]) == {"flapping": 50}


def test_a_worker_that_comes_back_starts_empty() -> None:
    index = MemoryIndex()
    index.stored("w", NAMES)
    index.drop("w")
    index.stored("w", NAMES[:1])
    assert index.longest(NAMES) == {"w": 1}
    assert index.longest(()) == {}
