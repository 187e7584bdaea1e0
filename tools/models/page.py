"""The page of all models as Markdown. Pure."""

from typing import Final

from tools.models.catalogue import Entry
from tools.models.prompts import ANSWER_TOKENS, CHUNK_TOKENS
from tools.models.record import Row, Rows
from tools.models.trial_types import Outcome, PromptTally, Twins

_HEAD: Final = """# Models

`make models` writes this page; `make models MODELS=llama,awq` tries some of them again. {lead}

Every model is tiny, of random weights (standard deviation 0.2, so that answers vary), with the demo model's
tokenizer, on vLLM's CPU kernels. It is asked prompts around the edges of blocks and of chunks of {chunk} tokens,
and some that begin like those, up to an edge of a block and beside it; {tokens} greedy tokens each. *Unified* is
one worker behind the router, *P/D* one prefill and one decode worker that computes nothing of a prompt, both as
`tandem up` starts them, asked over REST. An answer counts as equal when its tokens are those of vLLM alone (`LLM`,
in a process of its own, the same settings) and every log-probability is within {tolerances}.
`+ n` are prompts that part where vLLM's own two best tokens are nearer to each other than {gaps}.
A *twin* shows that equality means something: of four more prompts one block is zeroed in decode's cache after it was
verified and loaded (unified: two blocks of the prompt change places), and the answer has to become another one.

| model | architecture | KV caches | block | unified | its twins | P/D | its twins | remarks |
|---|---|---|---|---|---|---|---|---|
"""
_TAIL: Final = """
Last run {date} with vLLM {vllm}. Content hash of engine code and pins: `{code}`; `tools/models/code_hash.py`
lists what it counts, and a result of other code says so in its row.
"""


def page(rows: Rows, entries: tuple[Entry, ...], code: str) -> str:
    """What is known of the models, rows of other code marked as such."""
    from tools.models.judge import GAP_TOLERANCE, LOGPROB_TOLERANCE

    there = [rows[entry.name] for entry in entries if entry.name in rows]
    good = sum(row.holds and row.code == code for row in there)
    lead = f"{good} of {len(entries)} rows hold for this state of the code."
    text = _HEAD.format(
        lead=lead, chunk=CHUNK_TOKENS, tokens=ANSWER_TOKENS,
        tolerances=_by_type(LOGPROB_TOLERANCE), gaps=_by_type(GAP_TOLERANCE),
    )  # fmt: skip
    text += "".join(_line(entry, rows.get(entry.name), code) for entry in entries)
    versions = [each.vllm for row in there if (each := row.outcome or row.checked) is not None and each.vllm]
    return text + _TAIL.format(
        date=max((row.date for row in there), default="never"), vllm=max(versions, default="unknown"), code=code
    )


def _by_type(values: dict[str, float]) -> str:
    return " and ".join(f"{value:g} in {dtype}" for dtype, value in values.items())


def _line(entry: Entry, row: Row | None, code: str) -> str:
    cells = [entry.title, f"`{entry.architecture}`", entry.caches]
    if row is None:
        cells += ["–"] * 5 + ["not tried yet"]
    elif row.outcome is not None:
        cells += _outcome(entry, row.outcome)
    elif row.checked is not None:
        said = f"config, sizing and arguments checked; not run. {row.checked.size}"
        cells += ["–"] * 5 + [f"FAILED: {row.checked.problem}" if row.checked.problem else said]
    if row is not None and row.code != code:
        cells[-1] += f" (of code `{row.code}`)"
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def _outcome(entry: Entry, outcome: Outcome) -> list[str]:
    pair, twins = outcome.pair, outcome.pair_twins
    cells = [
        str(outcome.block or "–"),
        _tally(outcome.unified),
        _twins(outcome.unified_twins),
        _tally(pair) if pair is not None else "–",
        _twins(twins) if twins is not None else "–",
    ]
    wrong = [*outcome.unified.wrong[:1], *(pair.wrong[:1] if pair is not None else ())]
    without = f"without vLLM's kernel {entry.without}, which is wrong here" if entry.without else ""
    said = [entry.dtype, without, outcome.remark, *(f"FAILED: {why}" for why in (outcome.problem, *wrong) if why)]
    return [*cells, "; ".join(each for each in said if each)]


def _tally(found: PromptTally) -> str:
    if not found.asked:
        return "–"
    return f"{found.equal}{f' + {found.near_ties}' if found.near_ties else ''} of {found.asked}"


def _twins(found: Twins) -> str:
    return f"{found.differ} of {found.asked}" if found.asked else "–"
