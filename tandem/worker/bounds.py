"""Checks the fields of a router's commands. A router that has the key may be of another version, or broken: a field
that means nothing, or that would take an engine down, is refused by its name before anything is held for it. Pure."""

import math
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

import msgspec
import numpy as np

from tandem.core.errors import TandemError
from tandem.core.messages import Drain, Export, ProvideFirst, PublishSplit, Submit, Tune
from tandem.core.request import ChildRequest, Sampling
from tandem.engine.protocol import EngineInfo

_SEQUENCE_MAX: Final = 1 << 20
"""The numbers of an attempt's sequences are below this."""
_BRANCHES_MAX: Final = 1024
_U64: Final = 1 << 64
_STEP_MAX_S: Final = 3600.0
_RECORD_BYTES_MAX: Final = 1 << 20
"""The most bytes in a split record, which is sent to every router when it comes."""

Problem = tuple[str, str]
"""The field at fault, and what is wrong with it."""


def check_submit(submit: Submit, info: EngineInfo) -> None:
    """Raise `invalid_request` for a field that no engine could make sense of."""
    for param, problem in _problems(submit, info):
        raise TandemError("invalid_request", f"{param}: {problem}", param=param)


def check_first(first: ProvideFirst, info: EngineInfo) -> None:
    """Raise `invalid_request` for a token that the model does not have."""
    if not 0 <= first.token < info.vocab_size:
        raise TandemError("invalid_request", f"token: {_unknown(first.token, info)}", param="token")


def step_target_s(tune: Tune) -> float | None:
    """Seconds that a step may take beside running sequences, at most an hour: engines calculate with it."""
    return None if tune.itl_target_s is None else min(tune.itl_target_s, _STEP_MAX_S)


def check_drain(drain: Drain) -> None:
    """Raise `invalid_request` for a time that is none."""
    if not 0.0 <= drain.within_s < math.inf:
        raise TandemError("invalid_request", f"within_s: {drain.within_s} is no time to leave in", param="within_s")


def check_split(command: PublishSplit) -> None:
    """Raise `invalid_request` for a record that is too long to be sent to every router."""
    size = len(msgspec.msgpack.encode(command.record))
    if size > _RECORD_BYTES_MAX:
        problem = f"record: it has {size} bytes, {_RECORD_BYTES_MAX} are the most"
        raise TandemError("invalid_request", problem, param="record")


def _problems(submit: Submit, info: EngineInfo) -> Iterator[Problem]:
    if len(submit.prompt) % 4 != 0:
        yield "prompt", "it is no sequence of packed token ids"
    elif submit.prompt and not submit.images:
        # The places that an image takes are not in every vocabulary.
        yield from _unknown_tokens("prompt", (int(np.frombuffer(submit.prompt, "<u4").max()),), info)
    if math.isnan(submit.deadline_s):
        yield "deadline_s", "it is no time"
    yield from _of_branches(submit.branches, info)
    yield from _of_sampling(submit.sampling, info)
    yield from _unknown_tokens("stop_token_ids", submit.stopping.stop_token_ids, info)
    if submit.export is not None:
        yield from _of_export(submit.export)
    if submit.pin is not None and not 0.0 <= submit.pin.ttl_s < math.inf:
        yield "pin", f"{submit.pin.ttl_s} is no time to keep blocks for"
    for holder in (*submit.sources, *(() if submit.remote is None else (submit.remote,))):
        yield from _of_holder(holder.epoch, holder.addresses)


def _of_branches(branches: tuple[ChildRequest, ...], info: EngineInfo) -> Iterator[Problem]:
    if len(branches) > _BRANCHES_MAX:
        yield "branches", f"there are {len(branches)}, {_BRANCHES_MAX} are the most"
        return
    numbers = {branch.sequence: None for branch in branches}
    if len(numbers) < len(branches):
        yield "branches", "two have the same number"
    for branch in branches:
        if not 0 <= branch.sequence < _SEQUENCE_MAX:
            yield "branches", f"{branch.sequence} is no number of a sequence"
        if not 0 <= branch.seed < _U64:
            yield "branches", f"{branch.seed} is no seed"
        if len(branch.forced) > info.context_tokens:
            yield "branches", f"{len(branch.forced)} forced tokens are more than the context takes"
        elif branch.forced:
            yield from _unknown_tokens("branches", (min(branch.forced), max(branch.forced)), info)


def _of_sampling(sampling: Sampling, info: EngineInfo) -> Iterator[Problem]:
    for name in sampling.out_of_bounds():
        yield name, f"{getattr(sampling, name)} is out of its bounds"
    if sampling.logit_bias:
        yield from _unknown_tokens("logit_bias", (token for token, _ in sampling.logit_bias), info)
        if not all(math.isfinite(bias) for _, bias in sampling.logit_bias):
            yield "logit_bias", "a bias is no number"


def _of_export(export: Export) -> Iterator[Problem]:
    if not export.lease_id:
        yield "export", "the lease has no name"
    if not 0.0 < export.lease_s < math.inf:
        yield "export", f"{export.lease_s} is no time to hold a lease for"


def _of_holder(epoch: int, addresses: Iterable[str]) -> Iterator[Problem]:
    if not 0 <= epoch < _U64:
        yield "remote", f"{epoch} is no incarnation of a holder"
    for address in addresses:
        if not _names_a_host(address):
            yield "remote", f"{address[:100]!r} is no address"


def _names_a_host(address: str) -> bool:
    """Whether a transport can parse the address and look its host up; the host need not exist."""
    try:
        host = urlsplit(address).hostname or ""
        host.encode("idna")
    except ValueError:
        return False
    return "\x00" not in address


def _unknown_tokens(param: str, tokens: Iterable[int], info: EngineInfo) -> Iterator[Problem]:
    for token in tokens:
        if not 0 <= token < info.vocab_size:
            yield param, _unknown(token, info)


def _unknown(token: int, info: EngineInfo) -> str:
    return f"token {token} is not below the vocabulary size {info.vocab_size}"
