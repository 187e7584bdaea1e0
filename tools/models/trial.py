"""One model: vLLM alone, Tandem unified, Tandem with prefill and decode apart, and the twins of both."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tandem.apps.cli.platform import Platform
from tandem.apps.cli.supervisor import ROUTER
from tests.vllm.serving import Serving, serving
from tools.models.catalogue import Entry
from tools.models.client import ask, without_connector
from tools.models.damaging import VARIABLE
from tools.models.judge import tally, varied
from tools.models.prompts import BLOCK_TOKENS, CONTEXT_TOKENS, edges, further, swapped, twins
from tools.models.reference import BLOCKS, Answers, Reference
from tools.models.trial_types import Outcome, PromptTally, Twins

T = TypeVar("T")
Tell = Callable[[str], None]
_ENVIRONMENT: Final = {"TANDEM_VLLM__BLOCKS": str(BLOCKS), "TANDEM_STAGE__BLOCKS": str(BLOCKS - 1)}


ALONE: Final = "vLLM alone"
"""How a problem begins that it has without Tandem."""


async def trial(entry: Entry, model: Path, right: Reference, limit_s: float, tell: Tell) -> Outcome:
    """Never raises for what a model does, and takes little longer than `limit_s`."""
    began = time.monotonic()
    outcome = Outcome(entry.name)
    try:
        async with asyncio.timeout(limit_s):
            outcome = await _tried(entry, model, right, limit_s, tell)
    except TimeoutError:
        outcome = Outcome(entry.name, problem=f"not done within {limit_s:g} s")
    # A model can fail in as many ways as there is code below; each is a row of the table.
    except Exception as error:  # noqa: BLE001
        cause = _cause(error)
        outcome = Outcome(entry.name, problem=f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}")
    return msgspec.structs.replace(outcome, seconds=round(time.monotonic() - began, 1))


def _cause(error: BaseException) -> BaseException:
    """The first of those that ended a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _tried(entry: Entry, model: Path, right: Reference, limit_s: float, tell: Tell) -> Outcome:
    alone = _timed(tell, "vLLM alone", right.answers(model, entry.dtype, limit_s, entry.arguments()))
    known = asyncio.create_task(alone)
    try:
        async with asyncio.TaskGroup() as group:
            unified = group.create_task(_timed(tell, "unified", _unified(entry, model, known)))
            pair = (
                group.create_task(_timed(tell, "prefill and decode", _pair(entry, model, known)))
                if entry.exchanged
                else None
            )
        answers = await asyncio.shield(known)
    except ExceptionGroup:
        # What vLLM alone cannot do either tells nothing about Tandem.
        if not (answers := await known).problem:
            raise
    finally:
        known.cancel()
    if answers.problem:
        return Outcome(entry.name, problem=f"{ALONE}: {answers.problem}", vllm=answers.vllm)
    whole, whole_twins, remark = unified.result()
    handed, handed_twins = pair.result() if pair is not None else (None, None)
    return Outcome(
        entry.name, answers.block, answers.groups, whole, whole_twins, handed, handed_twins, remark,
        varied(answers.edges + answers.twins), vllm=answers.vllm,
    )  # fmt: skip


async def _unified(entry: Entry, model: Path, known: "asyncio.Task[Answers]") -> tuple[PromptTally, Twins, str]:
    async with _serving(entry, model, ["--prefill", "0", "--decode", "1"]) as running:
        answers = await asyncio.shield(known)
        if answers.problem:
            return PromptTally(), Twins(), ""
        found = await _equal(entry, running, answers, handed_over=False)
        return found, await _swapped(running, answers), await asyncio.to_thread(without_connector, running)


async def _pair(entry: Entry, model: Path, known: "asyncio.Task[Answers]") -> tuple[PromptTally, Twins]:
    damage = model / "damage"
    damage.unlink(missing_ok=True)
    flags = ["--prefill", "1", "--decode", "1"]
    async with _serving(entry, model, flags, {VARIABLE: str(damage)}) as running:
        answers = await asyncio.shield(known)
        if answers.problem:
            return PromptTally(), Twins()
        found = await _equal(entry, running, answers, handed_over=True)
        try:
            return found, await _damaged(running, answers, damage)
        finally:
            damage.unlink(missing_ok=True)


async def _equal(entry: Entry, running: Serving, answers: Answers, *, handed_over: bool) -> PromptTally:
    prompts = edges(answers.block) + further(answers.block)
    found = await ask(running, prompts, handed_over=handed_over)
    alone = answers.edges + answers.further
    return tally(entry.dtype, prompts, found, alone)


async def _swapped(running: Serving, answers: Answers) -> Twins:
    """Two blocks of every prompt change places: the answer has to, too."""
    prompts = [swapped(twin, answers.block) for twin in twins(answers.block)]
    found = await ask(running, prompts, handed_over=False)
    return Twins(
        len(found), sum(ours.tokens != right.tokens for ours, right in zip(found, answers.twins, strict=True))
    )


async def _damaged(running: Serving, answers: Answers, damage: Path) -> Twins:
    """One block of every prompt is zeroed on its way into the decode worker's cache."""
    differ, tried = 0, twins(answers.block)
    for twin, right in zip(tried, answers.twins, strict=True):
        _order(damage, twin.block)
        (found,) = await ask(running, [twin.prompt], handed_over=True)
        differ += found.tokens != right.tokens
    return Twins(len(tried), differ)


def _order(damage: Path, block: int) -> None:
    """From now on this block of every load is damaged."""
    damage.write_text(str(block))


def _serving(
    entry: Entry, model: Path, flags: list[str], environment: dict[str, str] | None = None
) -> AbstractAsyncContextManager[Serving]:
    given = [
        *flags, "--dtype", entry.dtype, "--block-tokens", str(BLOCK_TOKENS), "--context-tokens", str(CONTEXT_TOKENS)
    ]  # fmt: skip
    return serving(given, {**_ENVIRONMENT, **(environment or {})}, model, change=partial(_changed, entry))


def _changed(entry: Entry, platform: Platform) -> None:
    """Workers get the entry's arguments, and decode workers run in the module that damages KV, which does
    nothing unless its file is there."""
    told = [
        word
        for name, given in entry.arguments().items()
        for word in (f"--vllm.extra.{name}", given if isinstance(given, str) else json.dumps(given))
    ]
    for member in platform.members:
        if member.role == ROUTER:
            continue
        python, flag, module, *more = (*member.command.argv, *told)
        damaging = [] if member.role == "prefill" else ["tools.models.damaging"]
        member.command = replace(member.command, argv=(python, flag, *damaging, module, *more))


async def _timed(tell: Tell, stage: str, work: Awaitable[T]) -> T:
    began = time.monotonic()
    try:
        found = await work
    except BaseException:
        tell(f"{stage}: failed after {time.monotonic() - began:.0f} s")
        raise
    tell(f"{stage}: {time.monotonic() - began:.0f} s")
    return found
