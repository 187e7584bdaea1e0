"""What a seed draws is a promise to clients: these numbers were written down once and are the same for ever.

Everything that draws, tests and references too, goes through `tandem.core.entropy`; a fault there is on both sides of
every comparison. So here nothing is compared with itself.
"""

import pytest
import torch

from tandem.core.entropy import SeededEntropy, position_u64, position_unit
from tandem.core.request import Sampling
from tandem.engine.scheduler.plan import Draw
from tandem.engine.torch.sampling import sample

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("place", "word"),
    [
        ((0, 0, 0), 0xCB65974158A9100C),
        ((11, 0, 1), 0xAAB09E7AC74BD679),
        ((11, 1, 1), 0x63F884041CCC28E8),
        ((11, 0, 2), 0x54FB7C5F19B95646),
        ((11, 3, 7), 0x33B060CDD57F4582),
        ((18446744073709551615, 65535, 4096), 0x224061E7CECAF562),
        ((1099511627776, 2, 1048576), 0x613D6E7FBAD49717),
    ],
)
def test_the_word_of_a_position_is_the_one_that_was_written_down(place: tuple[int, int, int], word: int) -> None:
    assert position_u64(*place) == word


def test_units_are_the_upper_53_bits() -> None:
    assert position_unit(11, 0, 1) == 0.6667574929954718
    assert position_unit(11, 3, 7) == 0.20191006684535484


def test_a_seeded_stream_is_the_one_that_was_written_down() -> None:
    entropy = SeededEntropy(7, "router")
    assert [entropy.u64() for _ in range(3)] == [0x2FA8C6A7244B674D, 0x272E036FA002652B, 0x32C7DDC7CDA0E33E]
    assert entropy.token(4).hex() == "65c4500a"
    assert entropy.fork("x").u64() == 0x7443A705C0E0909B


def test_branches_of_one_request_draw_differently() -> None:
    """`n=4` at a high temperature gives four answers, not one four times."""
    words = {position_u64(11, sequence, position) for sequence in range(8) for position in range(1, 65)}
    assert len(words) == 8 * 64
    flat = torch.zeros(4, 1000)
    answers = list[list[int]]()
    for position in range(1, 6):
        draws = [Draw(1, branch, 11, position, Sampling()) for branch in range(4)]
        answers.append([drawn.token for drawn in sample(flat.clone(), draws)])
    assert [list(branch) for branch in zip(*answers, strict=True)] == [
        [666, 331, 919, 208, 900],
        [390, 878, 27, 546, 112],
        [168, 925, 447, 344, 808],
        [694, 579, 336, 499, 551],
    ]
