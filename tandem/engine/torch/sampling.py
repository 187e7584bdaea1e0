"""Sampling of tokens from logits: vLLM's order (bias, penalties, temperature, min-p, top-k, top-p), then one random
number.

A token is drawn by inverse CDF over ascending token ids with the random number of (seed, sequence, position). Every
operation works on each row alone, so a draw does not depend on what else is in the batch. All tokens that tie at a
cut-off are kept: which of them a sort puts first must not matter.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tandem.core.entropy import position_unit
from tandem.core.errors import TandemError
from tandem.core.messages import Alternative, TokenLogprob
from tandem.engine.scheduler.plan import Draw, Drawn

_NUCLEUS_FIRST = 1024
"""The number of likeliest tokens that top-p examines before it sorts the whole vocabulary."""

_PIECE = 512
"""Tokens of which probabilities are added up first where the whole vocabulary is drawn from."""

_TEMPERATURE_MIN = 1e-6


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[Drawn, ...]:
    """One token per draw. `logits` [draws, vocabulary], float32, may be overwritten.

    Raises `engine_failed` when a row holds no finite maximum.
    """
    logprobs = _logprobs(logits, draws)
    _adjust(logits, draws)
    best, greedy = logits.max(-1)
    if not bool(torch.isfinite(best).all()):
        raise TandemError("engine_failed", "the model produced logits that are not finite numbers")
    tokens = greedy.tolist()
    warm = [index for index, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if warm:
        rows = logits if len(warm) == len(draws) else logits[warm]
        for index, token in zip(warm, _random(rows, [draws[index] for index in warm]), strict=True):
            tokens[index] = token
    reports = _reports(logprobs, draws, tokens)
    return tuple(
        Drawn(draw.work_id, draw.sequence, draw.position, token, reports.get(index))
        for index, (draw, token) in enumerate(zip(draws, tokens, strict=True))
    )


def _logprobs(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor | None:
    """Log-probabilities of the raw logits, for the draws that report them, in their order."""
    wanted = [index for index, draw in enumerate(draws) if draw.sampling.logprobs is not None]
    return torch.log_softmax(logits[wanted], -1) if wanted else None


def _reports(logprobs: torch.Tensor | None, draws: Sequence[Draw], tokens: Sequence[int]) -> dict[int, TokenLogprob]:
    reports: dict[int, TokenLogprob] = {}
    if logprobs is None:
        return reports
    most = max(draw.sampling.logprobs or 0 for draw in draws)
    values, ids = (part.tolist() for part in logprobs.topk(min(most, logprobs.shape[1]), -1))
    for index, draw in enumerate(draws):
        if draw.sampling.logprobs is not None:
            row = len(reports)
            pairs = zip(ids[row][: draw.sampling.logprobs], values[row][: draw.sampling.logprobs], strict=True)
            top = tuple(Alternative(token, value) for token, value in pairs)
            reports[index] = TokenLogprob(float(logprobs[row, tokens[index]]), top)
    return reports


def _adjust(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    """Apply forbidden tokens, bias and penalties in place, to the rows that have any."""
    for row, draw in enumerate(draws):
        sampling = draw.sampling
        if sampling.logit_bias:
            _bias(logits[row], sampling.logit_bias)
        if sampling.needs_history:
            _penalise(logits[row], draw)
        if draw.forbidden:
            logits[row, list(draw.forbidden)] = float("-inf")


def _bias(row: torch.Tensor, bias: tuple[tuple[int, float], ...]) -> None:
    known = [(token, amount) for token, amount in bias if 0 <= token < row.shape[0]]
    ids = torch.tensor([token for token, _ in known], dtype=torch.int64, device=row.device)
    row[ids] += torch.tensor([amount for _, amount in known], device=row.device)


def _penalise(row: torch.Tensor, draw: Draw) -> None:
    """Repetition divides (or multiplies, below zero) what occurred; presence and frequency subtract for output."""
    sampling = draw.sampling
    if sampling.repetition_penalty != 1.0:
        seen = torch.from_numpy(np.unique(_ids(draw.prompt + draw.output))).to(row.device)
        values = row[seen]
        penalty = sampling.repetition_penalty
        row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    ids, counts = np.unique(_ids(draw.output), return_counts=True)
    amounts = sampling.frequency_penalty * counts + sampling.presence_penalty
    row[torch.from_numpy(ids).to(row.device)] -= torch.from_numpy(amounts).to(row.device, row.dtype)


def _ids(packed: bytes) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.frombuffer(packed, np.uint32).astype(np.int64)


def _random(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Tokens of rows with a temperature above zero."""
    device = logits.device
    settings = [draw.sampling for draw in draws]
    temperatures = torch.tensor([sampling.temperature for sampling in settings], device=device)
    # With the greatest at zero, no temperature however small can turn a row into infinities.
    logits = (logits - logits.amax(-1, keepdim=True)) / temperatures.clamp(min=_TEMPERATURE_MIN)[:, None]
    if any(sampling.min_p > 0 for sampling in settings):
        least = torch.tensor([sampling.min_p for sampling in settings], device=device).log()
        logits = _cut(logits, logits.amax(-1) + least)
    cuts = [Cut(sampling.top_k, sampling.top_p) for sampling in settings]
    units = [position_unit(draw.seed, draw.sequence, draw.position) for draw in draws]
    return [int(token) for token in draw_tokens(logits, cuts, units).tolist()]


class Cut(NamedTuple):
    """The cut that says which tokens of a row remain: the `top_k` likeliest (0: all), and of these the share
    `top_p`."""

    top_k: int
    top_p: float


def draw_tokens(logits: torch.Tensor, cuts: Sequence[Cut], units: Sequence[float]) -> torch.Tensor:
    """One token per row, [rows], by inverse CDF over ascending ids, with a number in [0, 1) for each.

    `logits` [rows, vocabulary] are over temperature already. Rows with a cut are drawn among their likeliest tokens;
    only those without, and those whose cut leaves more, look at the whole vocabulary.
    """
    tokens = torch.empty(len(cuts), dtype=torch.int64, device=logits.device)
    whole = [row for row, cut in enumerate(cuts) if cut.top_k == 0 and cut.top_p >= 1]
    if limited := [row for row, cut in enumerate(cuts) if cut.top_k > 0 or cut.top_p < 1]:
        drawn, decided = _draw_likeliest(*_rows(logits, cuts, units, limited))
        tokens[limited] = drawn
        whole += [row for row, sure in zip(limited, decided.tolist(), strict=True) if not sure]
    if whole:
        whole.sort()
        tokens[whole] = _draw_whole(*_rows(logits, cuts, units, whole))
    return tokens


def _rows(
    logits: torch.Tensor, cuts: Sequence[Cut], units: Sequence[float], rows: Sequence[int]
) -> tuple[torch.Tensor, Sequence[Cut], torch.Tensor]:
    """The logits, cuts and random numbers of `rows`, which are in order; the logits are not copied when `rows` are
    all rows."""
    if len(rows) < len(cuts):
        cuts, units, logits = [cuts[row] for row in rows], [units[row] for row in rows], logits[list(rows)]
    return logits, cuts, torch.tensor(units, device=logits.device, dtype=torch.float64)


def _draw_likeliest(
    logits: torch.Tensor, cuts: Sequence[Cut], units: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of rows with a cut, and for each row whether its token is right: it is not where the cut leaves more
    tokens than were examined. Sums run over the candidates in order, so the number that other rows examine changes
    nothing."""
    device = logits.device
    counts = torch.tensor([cut.top_k or logits.shape[1] for cut in cuts], device=device)
    shares = torch.tensor([cut.top_p for cut in cuts], device=device, dtype=torch.float64)
    # One more than is kept, so that a tie at the cut is seen.
    most = min(max(cut.top_k + 1 if cut.top_k else _NUCLEUS_FIRST for cut in cuts), logits.shape[1])
    values, ids = logits.topk(most, -1)
    least = values.gather(1, (counts.clamp(max=most) - 1)[:, None])
    unlimited = (counts >= logits.shape[1])[:, None]
    kept = (values >= least) | unlimited
    # A tie at the k-th that may go on beyond.
    tied = kept[:, -1] & ~unlimited[:, 0]
    weights = (values - values[:, :1]).double().exp() * kept
    cumulative = weights.cumsum(-1)
    totals = cumulative[:, -1:]
    if any(cut.top_k == 0 for cut in cuts):
        whole = (logits.logsumexp(-1, keepdim=True) - values[:, :1]).double().exp()
        totals = torch.where(unlimited, whole, totals)
    inside = ((cumulative - weights) < shares[:, None] * totals).sum(-1).clamp(min=1)
    nucleus = values.gather(1, (inside - 1)[:, None])
    kept &= (values >= nucleus) | (shares >= 1)[:, None]
    decided = ~((tied | kept[:, -1]) & (values[:, -1] > float("-inf"))) | (most == logits.shape[1])
    ids, order = ids.sort(-1)
    cumulative = (weights * kept).gather(1, order).cumsum(-1)
    return ids.gather(1, _inverse(cumulative, units)[:, None])[:, 0], decided


def _draw_whole(logits: torch.Tensor, cuts: Sequence[Cut], units: torch.Tensor) -> torch.Tensor:
    """Tokens of rows of which any token may be drawn. Sums of pieces find the piece, a sum within it the token: a
    cumulative sum over the vocabulary would cost several passes in double precision."""
    device = logits.device
    if any(cut.top_k > 0 for cut in cuts):
        logits = _cut(logits, _kth(logits, [cut.top_k for cut in cuts]))
    probabilities = torch.softmax(logits, -1)
    if any(cut.top_p < 1 for cut in cuts):
        shares = torch.tensor([cut.top_p for cut in cuts], device=device, dtype=torch.float64)
        probabilities = probabilities * (probabilities >= _nucleus(probabilities, shares)[:, None])
    if probabilities.shape[1] <= 4 * _PIECE:
        return _inverse(probabilities.double().cumsum(-1), units)
    pieces = -(-probabilities.shape[1] // _PIECE)
    probabilities = torch.nn.functional.pad(probabilities, (0, pieces * _PIECE - probabilities.shape[1]))
    probabilities = probabilities.view(-1, pieces, _PIECE)
    sums = probabilities.sum(-1).double().cumsum(-1)
    piece = _inverse(sums, units)[:, None]
    before = torch.where(piece > 0, sums.gather(1, (piece - 1).clamp(min=0)), 0.0)[:, 0]
    within = probabilities[torch.arange(len(piece), device=device), piece[:, 0]].double().cumsum(-1)
    return piece[:, 0] * _PIECE + _first_above(within, units * sums[:, -1] - before)


def _inverse(cumulative: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """The index at which each row's cumulative sum passes its share of the total; shares are in [0, 1)."""
    return _first_above(cumulative, units * cumulative[:, -1])


def _first_above(cumulative: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The first entry above each row's target, which one of probability zero can never be; at most the last that adds
    anything."""
    found = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
    return torch.minimum(found, (cumulative < cumulative[:, -1:]).sum(-1))


def _cut(logits: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    """Give zero probability to what lies below each row's bound."""
    return logits.masked_fill(logits < least[:, None], float("-inf"))


def _kth(logits: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Each row's k-th greatest logit; minus infinity where k is 0."""
    size = logits.shape[1]
    most = min(max(counts), size)
    greatest = logits.topk(most, -1).values
    index = torch.tensor([min(count or 1, size) - 1 for count in counts], device=logits.device)
    bounds = greatest.gather(1, index[:, None])[:, 0]
    unlimited = torch.tensor([count == 0 for count in counts], device=logits.device)
    return bounds.masked_fill(unlimited, float("-inf"))


def _nucleus(probabilities: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Each row's least probability inside the smallest set of likeliest tokens that holds its share."""
    size = probabilities.shape[1]
    for count in (min(_NUCLEUS_FIRST, size), size):
        greatest = probabilities.topk(count, -1).values
        before = greatest.double().cumsum(-1) - greatest
        inside = (before < shares[:, None]).sum(-1)
        if count == size or bool((inside < count)[shares < 1].all()):
            break
    bounds = greatest.gather(1, (inside - 1).clamp(min=0)[:, None])[:, 0]
    return bounds.masked_fill(shares >= 1, 0.0)
