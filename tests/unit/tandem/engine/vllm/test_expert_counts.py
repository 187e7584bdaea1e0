"""What a rank counts of its routing: every choice of every layer once, padding never, and not too often told."""

from collections.abc import Callable

import pytest
import torch

from tandem.engine.counts import ExpertBalance
from tandem.engine.vllm.connector import expert_counts
from tandem.engine.vllm.connector.expert_counts import ExpertCounts


class Router:
    """Tells its choices, as vLLM's routers do."""

    def __init__(self) -> None:
        self.tell: Callable[[torch.Tensor], None] | None = None

    def set_capture_fn(self, tell: Callable[[torch.Tensor], None]) -> None:
        self.tell = tell

    def route(self, *choices: tuple[int, ...]) -> None:
        assert self.tell is not None
        self.tell(torch.tensor(choices, dtype=torch.int32))


def test_choices_are_counted_per_layer_and_padding_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_counts, "_EVERY_S", 0.0)
    routers = [Router(), Router()]
    counts = ExpertCounts(routers, 4, 2, torch.device("cpu"))
    assert counts.balance() is None
    routers[0].route((0, 1), (0, 1), (-1, -1))
    routers[1].route((0, 2), (1, 3))
    # The first layer has all its choices on two experts of four, which are those of the first of two ranks.
    assert counts.balance() == ExpertBalance(1.5, 1.5)
    assert counts.balance() is None
    routers[1].route((3, 3))
    assert counts.balance() == ExpertBalance(4.0, 2.0)


def test_it_is_told_at_most_once_a_second_and_nothing_is_lost_in_between() -> None:
    router = Router()
    counts = ExpertCounts([router], 2, 1, torch.device("cpu"))
    router.route((0,), (0,))
    assert counts.balance() == ExpertBalance(2.0, None)
    router.route((1,))
    assert counts.balance() is None
    assert counts._counts.tolist() == [[0, 0, 1]]
