"""Traces, lengths and mixes become workloads that keep prefix structure, on the clock that was asked for."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tandem.apps.bench.content import TokenRange, prompt_text, prompt_tokens
from tandem.apps.bench.lengths import read_lengths
from tandem.apps.bench.mooncake import quantum_s, read_trace
from tandem.apps.bench.schedule import at_rate, at_speed, jittered
from tandem.apps.bench.synthetic import parse_mix, synthetic
from tandem.apps.bench.workload import Item, Piece, Scale, Workload, cut, take
from tandem.core.errors import TandemError

TRACE = [
    {"timestamp": 3000, "input_length": 1100, "output_length": 64, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 1536, "output_length": 3, "hash_ids": [0, 1, 3]},
    {"timestamp": 9000, "input_length": 512, "output_length": 640, "hash_ids": [0]},
]


def write_trace(path: Path, lines: Sequence[object] = TRACE) -> Path:
    raw = "\n".join(json.dumps(line) for line in lines).encode()
    path.write_bytes(zstandard.compress(raw) if path.suffix == ".zst" else raw)
    return path


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.zst"])
def test_a_trace_is_read_with_lengths_and_relative_times(tmp_path: Path, name: str) -> None:
    workload = read_trace(write_trace(tmp_path / name))
    assert [item.arrival_s for item in workload.items] == [0.0, 0.0, 6.0]
    assert [item.input_tokens for item in workload.items] == [1100, 1536, 512]
    assert [item.output_tokens for item in workload.items] == [64, 3, 640]
    assert workload.quantum_s == 6.0


def test_scaling_shrinks_every_length_and_keeps_at_least_one_token(tmp_path: Path) -> None:
    workload = read_trace(write_trace(tmp_path / "trace.jsonl"), scale=Scale(1 / 64, 1 / 64))
    assert [item.input_tokens for item in workload.items] == [17, 24, 8]
    assert [item.output_tokens for item in workload.items] == [1, 1, 10]


def test_prompts_and_answers_scale_apart(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "trace.jsonl"), scale=Scale(1 / 64, 2))
    assert [(item.input_tokens, item.output_tokens) for item in trace.items] == [(17, 128), (24, 6), (8, 1280)]
    (tmp_path / "lengths.csv").write_text("input,output\n64,4\n")
    rows = read_lengths(tmp_path / "lengths.csv", scale=Scale(output=0.5))
    assert [(item.input_tokens, item.output_tokens) for item in rows.items] == [(64, 2)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1, 2]}, "make 1 blocks of 512"),
        ({"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}, "positive"),
        ({"timestamp": 0, "output_length": 1, "hash_ids": [1]}, "input_length"),
        ({"timestamp": "x", "input_length": 5, "output_length": 1, "hash_ids": [1]}, "timestamp"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, said: str) -> None:
    path = write_trace(tmp_path / "t.jsonl", [TRACE[0], line])
    with pytest.raises(TandemError, match="line 2") as caught:
        read_trace(path)
    assert said in caught.value.message


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl.zst").write_bytes(b"not zstd")
    (tmp_path / "empty.jsonl").write_bytes(b"\n")
    for name in ("absent.jsonl", "broken.jsonl.zst", "empty.jsonl"):
        with pytest.raises(TandemError, match=name):
            read_trace(tmp_path / name)


@given(
    shared=st.lists(st.integers(0, 99), max_size=6),
    tails=st.tuples(st.lists(st.integers(100, 199), max_size=4), st.lists(st.integers(200, 299), max_size=4)),
    scale=st.floats(0.002, 1.5),
)
def test_scaling_keeps_prefix_structure(shared: list[int], tails: tuple[list[int], list[int]], scale: float) -> None:
    ids = [[*shared, *tail, 999] for tail in tails]
    one, other = (cut(contents, 512 * len(contents), 512, scale) for contents in ids)
    common = round(512 * len(shared) * scale)
    tokens = [prompt_tokens(pieces, TokenRange(), 0) for pieces in (one, other)]
    assert tokens[0][:common] == tokens[1][:common]
    assert [len(prompt) for prompt in tokens] == [max(1, round(512 * len(contents) * scale)) for contents in ids]


def test_equal_contents_give_equal_tokens_and_a_shorter_piece_is_a_prefix() -> None:
    vocabulary = TokenRange(10, 500)
    long = prompt_tokens((Piece(7, 100),), vocabulary, 1)
    assert prompt_tokens((Piece(7, 33),), vocabulary, 1) == long[:33]
    assert prompt_tokens((Piece(8, 100),), vocabulary, 1) != long
    assert prompt_tokens((Piece(7, 100),), vocabulary, 2) != long
    assert all(10 <= token < 500 for token in long)


def test_text_prompts_share_prefixes_too() -> None:
    one = prompt_text((Piece(1, 20), Piece(2, 20)), 1.0, 0)
    other = prompt_text((Piece(1, 20), Piece(3, 20)), 1.0, 0)
    assert one.split()[:20] == other.split()[:20]
    assert one != other
    assert len(prompt_text((Piece(1, 20),), 2.0, 0).split()) == 10


def test_lengths_from_csv_with_and_without_times(tmp_path: Path) -> None:
    timed, plain = tmp_path / "timed.csv", tmp_path / "plain.csv"
    timed.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:00:01.5000000,20,2\n"
        "2023-11-16 18:00:00.2500000,10,1\n"
    )
    plain.write_text("num_prefill_tokens,num_decode_tokens\n64,4\n640,40\n")
    assert [(item.arrival_s, item.input_tokens) for item in read_lengths(timed).items] == [(0.0, 10), (1.25, 20)]
    workload = read_lengths(plain, scale=Scale(0.5, 0.5))
    assert not workload.timed
    assert [(item.input_tokens, item.output_tokens) for item in workload.items] == [(32, 2), (320, 20)]


def test_csv_without_the_columns_or_with_bad_numbers_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("input,output\n1,2\n3,many\n")
    with pytest.raises(TandemError, match="none of the columns"):
        read_lengths(tmp_path / "a.csv")
    with pytest.raises(TandemError, match="line 3"):
        read_lengths(tmp_path / "b.csv")


def test_a_mix_is_reproducible_and_shares_its_prefix() -> None:
    mix = parse_mix("100:10@3,1000:20")
    one, again = synthetic(mix, 50, 32, 5), synthetic(mix, 50, 32, 5)
    assert one == again
    assert {item.pieces[0] for item in one.items} == {Piece(-1, 32)}
    assert all(50 <= item.input_tokens <= 1500 for item in one.items)
    assert synthetic(mix, 50, 32, 6) != one


@pytest.mark.parametrize("text", ["100", "100:", "0:5", "5:5@0", "a:b", ""])
def test_a_bad_mix_is_refused(text: str) -> None:
    with pytest.raises(TandemError, match="IN:OUT"):
        parse_mix(text)


def items(*arrivals: float) -> tuple[Item, ...]:
    return tuple(Item(arrival, (Piece(index, 8),), 4) for index, arrival in enumerate(arrivals))


def test_jitter_stays_inside_the_grid_and_keeps_order() -> None:
    workload = Workload("w", items(*[3.0 * (index // 10) for index in range(60)]), quantum_s=3.0)
    moved = jittered(workload, seed=1)
    times = [item.arrival_s for item in moved.items]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert len(set(times)) == 60
    # At most one cell of movement relative to the first arrival's own.
    assert all(abs(a - b) < 3.0 for a, b in zip(times, sorted(i.arrival_s for i in workload.items), strict=True))
    assert jittered(workload, seed=1) == moved


def test_the_grid_of_times() -> None:
    assert quantum_s([0, 3000, 9000]) == 3.0
    assert quantum_s([0, 3001, 9000]) == 0.0
    assert quantum_s([0, 0]) == 0.0
    trembling = [3000 * (index // 10) + index // 10 % 2 for index in range(100)]
    assert 2.99 <= quantum_s(trembling) <= 3.01


def test_speed_and_rate_stretch_time() -> None:
    workload = Workload("w", items(0.0, 1.0, 2.0, 10.0))
    assert [item.arrival_s for item in at_speed(workload, 2).items] == [0.0, 0.5, 1.0, 5.0]
    assert at_rate(workload, 4.0, 0).items[-1].arrival_s == pytest.approx(1.0)


def test_untimed_workloads_get_a_poisson_process() -> None:
    times = [item.arrival_s for item in at_rate(Workload("w", items(*[0.0] * 4000), timed=False), 20.0, 3).items]
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 20, rel=0.1)
    assert variance**0.5 == pytest.approx(mean, rel=0.15)


def test_take_leaves_out_what_does_not_fit() -> None:
    workload = Workload("w", (Item(0.0, (Piece(0, 100),), 10), Item(1.0, (Piece(1, 10),), 10)))
    assert take(workload, 5, 50).items == workload.items[1:]
    assert take(workload, 1, None).items == workload.items[:1]
