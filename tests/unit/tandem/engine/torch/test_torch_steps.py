"""What a step does to KV memory and tokens: chunks, paging, mixed batches, copies, digests, the device mirror."""

import dataclasses
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens, unpack_tokens
from tandem.engine.digest import Digester
from tandem.engine.scheduler.plan import BlockRef, Draw, Row, Step
from tandem.engine.torch.executor import ModelExecutor
from tandem.engine.torch.grouping import SPARE_BLOCKS, group_by_blocks
from tests.worlds.torch_drive import GREEDY, Driver, complete, draw_row, prepared, prompt, save_model

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "Llama")
    return path


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("windowed")
    save_model(path, "Qwen3", use_sliding_window=True, sliding_window=11, max_window_layers=1, head_dim=32)
    return path


def cuts(total: int, *edges: int) -> list[int]:
    points = [0, *edges, total]
    return [after - before for before, after in pairwise(points)]


@pytest.mark.parametrize("edges", [(1,), (7,), (8,), (9,), (16, 17), (8, 16, 24), (3, 30, 39), tuple(range(1, 40))])
@pytest.mark.parametrize("model", ["llama", "windowed"])
def test_any_chunking_equals_one_piece(model: str, edges: tuple[int, ...], request: pytest.FixtureRequest) -> None:
    driver = Driver(request.getfixturevalue(model))
    tokens = prompt(40)
    whole = driver.prefill(tokens, driver.table(40), (40,))
    cut = driver.prefill(tokens, driver.table(40), cuts(40, *edges))
    torch.testing.assert_close(whole, cut, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("edges", [(), (13,), (256,), (13, 300)])
def test_chunks_of_several_tiles(edges: tuple[int, ...], windowed: Path) -> None:
    """Against tokens fed one by one, which need no staircase mask."""
    driver = Driver(windowed)
    tokens = prompt(330)
    expected = driver.prefill(tokens, driver.table(330), [1] * 330)
    cut = driver.prefill(tokens, driver.table(330), cuts(330, *edges))
    torch.testing.assert_close(cut, expected, rtol=1e-4, atol=1e-4)


def test_chunks_write_the_same_blocks(llama: Path) -> None:
    driver = Driver(llama)
    tokens = prompt(24)
    tables = [driver.table(24), driver.table(24)]
    driver.prefill(tokens, tables[0], (24,))
    driver.prefill(tokens, tables[1], (5, 12, 7))
    for one, other in zip(unpack_tokens(tables[0]), unpack_tokens(tables[1]), strict=True):
        left, right = (torch.frombuffer(bytearray(driver.block(slot)), dtype=torch.float32) for slot in (one, other))
        assert one != other
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", ["llama", "windowed"])
def test_mixed_step_equals_single_rows(model: str, request: pytest.FixtureRequest) -> None:
    """Decoding rows of very different lengths, prompt chunks and a recomputed token, all in one step."""
    path = request.getfixturevalue(model)
    lengths = [1, 130, 9, 64, 17, 3]
    alone, together = Driver(path), Driver(path, seed=5)
    singles = []
    rows = []
    for index, length in enumerate(lengths):
        tokens = prompt(length, seed=index)
        for driver in (alone, together):
            table = driver.table(length + 20)
            if length > 1:
                driver.step(Row(pack_tokens(tokens[:-1]), 0, table))
            row = Row(pack_tokens(tokens[-1:]), length - 1, table)
            rows.append(row) if driver is together else singles.append(driver.logits(row)[0])
    for index, start in ((8, 0), (9, 12)):
        tokens = prompt(33, seed=index)
        for driver in (alone, together):
            table = driver.table(33)
            if start:
                driver.step(Row(pack_tokens(tokens[:start]), 0, table))
            row = Row(pack_tokens(tokens[start:]), start, table)
            rows.append(row) if driver is together else singles.append(driver.logits(row)[0])
    recomputed = replace(rows[3], write=False)
    together.step(rows[3])
    rows[3] = recomputed
    torch.testing.assert_close(together.logits(*rows), torch.stack(singles), rtol=1e-4, atol=1e-4)


def test_draws_belong_to_their_rows(llama: Path) -> None:
    """Rows without draws, with one and with several; the answer keeps the step's order."""
    driver = Driver(llama)
    prompts = [prompt(length, seed=length) for length in (9, 1, 20)]
    expected = [driver.greedy(tokens, 1)[0] for tokens in prompts]
    rows = [Row(pack_tokens(tokens), 0, driver.table(24)) for tokens in prompts]
    many = tuple(Draw(5, sequence, sequence, 1, GREEDY) for sequence in range(3))
    one = (Draw(6, 0, 1, 1, GREEDY),)
    drawn = driver.step(replace(rows[0], draws=many), rows[1], replace(rows[2], draws=one)).drawn
    assert [(item.work_id, item.sequence, item.token) for item in drawn] == [
        *((5, sequence, expected[0]) for sequence in range(3)),
        (6, 0, expected[2]),
    ]


def test_unwritten_row_leaves_every_byte(llama: Path) -> None:
    driver = Driver(llama)
    tokens = prompt(16)
    table = driver.table(16)
    token = driver.step(draw_row(tokens, 0, table)).drawn[0].token
    before = bytes(driver.prepared.memory.buffer)
    again = driver.step(draw_row(tokens[-1:], 15, table, write=False)).drawn[0].token
    assert again == token
    assert bytes(driver.prepared.memory.buffer) == before


def test_complete_blocks_have_zeroed_rests_and_numpy_digests(llama: Path) -> None:
    driver = Driver(llama)
    driver.prepared.memory.buffer[:] = b"\x55" * len(driver.prepared.memory.buffer)
    table = driver.table(21)
    blocks = complete(table, 21, 8)
    assert [block.tokens for block in blocks] == [8, 8, 5]
    result = driver.step(Row(pack_tokens(prompt(21)), 0, table), complete=blocks)
    digester = Digester(driver.prepared.spec.layout)
    assert result.digests == tuple(digester.content_words(driver.block(block.slot)) for block in blocks)
    tail = torch.frombuffer(bytearray(driver.block(blocks[-1].slot)), dtype=torch.float32).view(2, 2, 8, 2, 16)
    assert bool((tail[:, :, 5:] == 0).all())
    assert bool((tail[:, :, :5] != 0).any(-1).all())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_digests_of_other_dtypes(llama: Path, dtype: str) -> None:
    driver = Driver(llama, dtype=dtype, block_tokens=5)
    table = driver.table(10)
    result = driver.step(Row(pack_tokens(prompt(10)), 0, table), complete=complete(table, 10, 5))
    digester = Digester(driver.prepared.spec.layout)
    assert result.digests == tuple(digester.content_words(driver.block(slot)) for slot in unpack_tokens(table))


def test_copies_come_before_rows(llama: Path) -> None:
    """A branch takes over a shared tail and goes on in its own copy."""
    driver = Driver(llama)
    tokens = prompt(12)
    table = driver.table(16)
    first = driver.step(draw_row(tokens, 0, table)).drawn[0].token
    expected = driver.step(draw_row([first], 12, table)).drawn[0].token
    shared, tail = unpack_tokens(table)
    original = driver.block(tail)
    (copy,) = unpack_tokens(driver.table(8))
    branch = draw_row([first], 12, pack_tokens((shared, copy)))
    assert driver.step(branch, copies=((tail, copy),)).drawn[0].token == expected
    other = draw_row([first + 1], 12, pack_tokens((shared, copy)))
    driver.step(other)
    assert driver.block(tail) == original


def test_step_without_rows(llama: Path) -> None:
    driver = Driver(llama)
    result = driver.step(complete=(BlockRef(3, 8),))
    assert result.drawn == ()
    assert len(result.digests) == 1


def test_mirrored_pool_exchanges_blocks_with_host_memory(llama: Path) -> None:
    """What another device does: blocks computed there appear on the host, landed ones are taken in."""
    ready = prepared(llama)
    source = ModelExecutor(dataclasses.replace(ready.spec, mirrored=True), ready.memory)
    tokens = prompt(17)
    row = draw_row(tokens, 0, pack_tokens((4, 9, 2)))
    blocks = complete(row.table, 17, 8)
    drawn = source.execute(Step(0, (row,), complete=blocks))
    digester = Digester(ready.spec.layout)
    assert drawn.digests == tuple(digester.content_words(ready.memory.block(slot)) for slot in (4, 9, 2))
    following = draw_row([drawn.drawn[0].token], 17, row.table)
    expected = source.execute(Step(1, (following,))).drawn[0].token
    target = prepared(llama)
    computer = ModelExecutor(dataclasses.replace(target.spec, mirrored=True), target.memory)
    for slot in (4, 9, 2):
        target.memory.block(slot)[:] = ready.memory.block(slot)
    assert computer.execute(Step(0, (following,), landed=(4, 9, 2))).drawn[0].token == expected


def test_numbers_that_are_not_finite_fail_the_step(llama: Path) -> None:
    driver = Driver(llama)
    table = driver.table(8)
    driver.step(Row(pack_tokens(prompt(7)), 0, table))
    (slot,) = unpack_tokens(table)
    driver.prepared.memory.block(slot)[:4] = b"\xff\xff\xff\x7f"
    with pytest.raises(TandemError, match="not finite") as caught:
        driver.step(draw_row([5], 7, table))
    assert caught.value.code == "engine_failed"


@given(st.lists(st.integers(1, 400), max_size=60))
def test_groups_are_complete_and_bound_their_padding(counts: list[int]) -> None:
    groups = group_by_blocks(counts)
    assert sorted(index for group in groups for index in group) == list(range(len(counts)))
    for group in groups:
        longest = max(counts[index] for index in group)
        short = [index for index in group if 2 * counts[index] < longest]
        assert sum(longest - counts[index] for index in short) <= SPARE_BLOCKS
