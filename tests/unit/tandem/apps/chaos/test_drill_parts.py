"""The decisions of a drill: which cells a platform allows, who is struck, what a request in a stage looks like."""

import msgspec
import pytest

from router.generation import RequestStatus
from tandem.apps.chaos.drill.catch import is_in
from tandem.apps.chaos.drill.cells import KINDS, STAGES, Cell, check_allowed, victim
from tandem.apps.chaos.drill.metrics import linked, parse_worker_metrics
from tandem.apps.chaos.drill.options import parse
from tandem.apps.chaos.drill.requests import shapes
from tandem.apps.chaos.drill.result import Report, Round, summarize
from tandem.apps.chaos.drill.table import markdown, round_line, verdict
from tandem.apps.cli.drill_settings import worker_settings
from tandem.apps.cli.main import COMMANDS
from tandem.apps.cli.registry import MemberEntry
from tandem.core.errors import TandemError


def members(prefill: int = 2, decode: int = 2, last: str = "decode") -> tuple[MemberEntry, ...]:
    roles = ["router"] + ["prefill"] * prefill + [last] * decode
    return tuple(
        MemberEntry(f"{role}-{number}" if role != "router" else role, role, 100 + number, "ready", "", "", 0)
        for number, role in enumerate(roles)
    )


THERE = RequestStatus("transfer", "prefill-2", "decode-3", 0, 1)
WAITING = RequestStatus("queue", None, None, 0, 0)


# ---- cells ----


@pytest.mark.parametrize(
    ("kind", "number", "name"),
    [
        ("kill-prefill", 0, "prefill-2"),
        ("kill-decode", 0, "decode-3"),
        ("freeze-decode", 5, "decode-3"),
        ("corrupt-kv", 0, "decode-3"),
        ("restart-router", 0, "router"),
        ("cut-link", 0, "decode-3"),
        ("cut-link", 1, "prefill-2"),
    ],
)
def test_the_struck_process_carries_the_request(kind: str, number: int, name: str) -> None:
    assert victim(Cell(kind, "transfer"), number, THERE, members()).name == name


def test_while_a_request_waits_everyone_is_struck_in_turn() -> None:
    names = [victim(Cell("kill-decode", "queue"), number, WAITING, members()).name for number in range(4)]
    assert names == ["decode-3", "decode-4", "decode-3", "decode-4"]


def test_without_prefill_workers_a_cut_hits_the_one_that_decodes() -> None:
    alone = RequestStatus("decode", None, "unified-1", 5, 1)
    assert victim(Cell("cut-link", "decode"), 1, alone, members(0, 2, "unified")).name == "unified-1"


@pytest.mark.parametrize("kind", ["corrupt-kv", "cut-link"])
def test_kinds_that_need_the_workers_help_need_a_platform_for_drills(kind: str) -> None:
    with pytest.raises(TandemError, match="tandem up --drills"):
        check_allowed([Cell(kind, "decode")], members(), drills=False)
    check_allowed([Cell(kind, "decode")], members(), drills=True)


@pytest.mark.parametrize("cell", [Cell("kill-prefill", "decode"), Cell("kill-decode", "transfer")])
def test_cells_without_prefill_workers_are_refused(cell: Cell) -> None:
    with pytest.raises(TandemError, match="prefill worker"):
        check_allowed([cell], members(0, 2, "unified"), drills=True)


# ---- stages ----


def test_a_request_is_in_a_stage_when_it_is_carried_as_one_of_that_stage() -> None:
    assert is_in("queue", WAITING)
    assert is_in("transfer", THERE)
    assert not is_in("first-token", THERE)
    assert not is_in("prefill", RequestStatus("prefill", None, "decode-3", 0, 1)), "decode computes this one itself"
    assert not is_in("decode", RequestStatus("decode", "prefill-2", "decode-3", 1, 1)), (
        "too early to be called decoding"
    )
    assert is_in("decode", RequestStatus("decode", "prefill-2", "decode-3", 9, 1))


# ---- requests ----


@pytest.mark.parametrize("context", [512, 4096, 131072])
def test_requests_fit_the_model_and_have_names_of_their_own(context: int) -> None:
    wanted = shapes(context, tokens_per_word=1.5).all()
    assert len({ask.name for ask in wanted}) == len(wanted)
    assert len({ask.prompt for ask in wanted}) == len(wanted)
    for ask in wanted:
        assert len(ask.prompt.split()) * 1.5 + ask.max_tokens <= context


def test_the_load_is_a_mixture() -> None:
    load = shapes(8192, 1.0).load
    assert {ask.chat for ask in load} == {True, False}
    assert any(ask.temperature == 0 for ask in load)
    assert any(ask.temperature > 0 for ask in load)
    assert any(ask.n > 1 for ask in load)
    body = msgspec.json.decode(load[0].body("model", "salt"))
    assert body["cache_salt"] == "salt"
    assert body["stream"] is True


# ---- options ----


def test_options_name_cells() -> None:
    options = parse(["kill-decode", "--during", "queue", "--rounds", "3", "--url", "http://127.0.0.1:1"])
    assert (options.cells, options.rounds) == ((Cell("kill-decode", "queue"),), 3)
    assert len(parse(["all", "--during", "all"]).cells) == len(KINDS) * len(STAGES)


@pytest.mark.parametrize("arguments", [["burn"], ["kill-decode", "--during", "lunch"], []])
def test_wrong_use_exits_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(arguments)
    assert stopped.value.code == 2


def test_rounds_are_counted_from_one() -> None:
    with pytest.raises(TandemError, match="--rounds"):
        parse(["kill-decode", "--rounds", "0"])


def test_the_command_is_there() -> None:
    assert COMMANDS["drill"].module == "tandem.apps.chaos.drill.command"


@pytest.mark.parametrize("engine", ["simulated", "torch"])
def test_workers_for_drills_are_told_so(engine: str) -> None:
    assert worker_settings(engine)["drills"] == "true"


# ---- metrics pages ----


PAGE = """
tandem_kv_blocks{state="free"} 90.0
tandem_kv_blocks{state="used"} 10.0
tandem_kv_blocks{state="exported"} 4.0
tandem_kv_blocks_refused_total{reason="digest"} 2.0
tandem_kv_blocks_refused_total{reason="generation"} 1.0
tandem_workers{role="prefill",state="ready"} 2.0
tandem_workers{role="decode",state="ready"} 1.0
tandem_workers{role="decode",state="draining"} 1.0
"""


def test_pages_are_read() -> None:
    page = parse_worker_metrics(PAGE)
    assert page is not None
    assert (page.blocks_used, page.blocks_exported, page.blocks_refused) == (10, 4, 3)
    assert linked(PAGE) == 3
    assert parse_worker_metrics("") is None, "a worker whose engine has not begun tells nothing"


# ---- results ----


def round_of(problems: tuple[str, ...] = (), recovery_s: float | None = 1.5, lost: int = 0) -> Round:
    return Round(
        kind="kill-decode",
        stage="decode",
        victim="decode-0",
        requests=10,
        misuses=7,
        lost=lost,
        duplicated=0,
        wrong=0,
        without_end=0,
        broken=2,
        resumed=1,
        longest_pause_s=0.25,
        recovery_s=recovery_s,
        blocks_leaked=0,
        release_s=0.1,
        missed=0,
        problems=problems,
    )


def test_a_cell_passes_when_all_its_rounds_do() -> None:
    good = summarize([round_of(), round_of(recovery_s=2.0)], "simulated")
    assert (good.failed, good.requests, good.recovery_s, good.broken) == (0, 20, 2.0, 4)
    assert good.misuses == 14
    bad = summarize([round_of(), round_of(("3 tokens lost",), lost=3)], "simulated")
    assert (bad.failed, bad.lost) == (1, 3)
    assert Report("url", (good,), ()).passed
    assert not Report("url", (good, bad), ()).passed


def test_a_round_that_did_not_recover_leaves_no_recovery_time() -> None:
    cell = summarize([round_of(), round_of(("not whole",), recovery_s=None)], "torch")
    assert cell.recovery_s is None
    assert "recovery none" in verdict(cell)


def test_what_people_read_has_every_figure() -> None:
    cell = summarize([round_of(("3 tokens lost",), lost=3)], "simulated")
    assert verdict(cell).startswith("FAIL  kill-decode during decode: lost 3, duplicated 0")
    line = round_line(1, 2, round_of(("3 tokens lost",)))
    assert "10 requests, 7 misuses, 2 connections broke and 1 went on, longest" in line
    assert line.endswith("FAILED\n  3 tokens lost")
    table = markdown([cell, summarize([round_of()], "simulated")]).splitlines()
    assert len(table) == 4
    assert len({len(line) for line in table}) == 1, "columns are aligned"
    assert "1 FAILED" in table[2]
    assert "10 (2 broken, 1 resumed)" in table[3]
