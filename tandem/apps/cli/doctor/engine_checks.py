"""Checks with vLLM the arguments that a pool's workers would give it: vLLM's own parser and configuration judge them,
in a process that pretends to have the card."""

import importlib.util
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from control_plane.reconcile.accelerators import plain_name
from control_plane.reconcile.capacity_check import memory_of
from tandem.apps.cli.doctor.cases import Case, no_handoff_reason
from tandem.apps.cli.doctor.findings import Finding, ok, problem, unchecked
from tandem.core.errors import TandemError
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.arguments import EngineArguments, Sockets, engine_arguments
from tandem.engine.vllm.dry_run import PROCESSORS, Card, Resolved, resolve
from tandem.spec.vllm import vllm_settings

CAPABILITIES: Final = {
    "t4": (7, 5), "a100": (8, 0), "a10": (8, 6), "a10g": (8, 6), "l4": (8, 9), "l40": (8, 9), "l40s": (8, 9),
    "h100": (9, 0), "h200": (9, 0), "gh200": (9, 0), "b200": (10, 0), "gb200": (10, 0), "b300": (10, 3),
}  # fmt: skip
"""CUDA's capability by the beginning of an accelerator's type."""
ARCHITECTURES: Final = {
    "mi210": "gfx90a", "mi250": "gfx90a", "mi250x": "gfx90a", "mi300a": "gfx942", "mi300x": "gfx942",
    "mi308x": "gfx942", "mi325x": "gfx942", "mi350x": "gfx950", "mi355x": "gfx950",
}  # fmt: skip
"""The architecture of AMD's accelerators, by the beginning of an accelerator's type."""
_ARGUMENTS: Final = "arguments"
_BACKENDS: Final = "attention backends"
_GIB: Final = 1 << 30

Resolve = Callable[[Sequence[EngineArguments], Card], tuple[Resolved, ...]]


def engine_findings(
    cases: Sequence[Case], model: Path | None, resolving: Resolve = resolve
) -> dict[str, tuple[Finding, ...]]:
    """The findings about engine arguments, by pool. `model` is the directory with the model's `config.json`. vLLM is
    consulted once for each kind of card."""
    found, asked = dict[str, tuple[Finding, ...]](), dict[Card, list[Case]]()
    for case in cases:
        card = card_of(case)
        why = _not_checked(case, model, card)
        if case.engine.type != "vllm":
            said = f"the engine is {case.engine.type}, whose settings are those of the file"
            found[case.name] = (ok(_ARGUMENTS, case.name, said),)
        elif why is not None:
            found[case.name] = (unchecked(_ARGUMENTS, case.name, *why), unchecked(_BACKENDS, case.name, *why))
        elif card is not None:
            asked.setdefault(card, []).append(case)
    for card, alike in asked.items():
        assert model is not None
        found |= _resolved(alike, model, card, resolving)
    return found


def _resolved(cases: Sequence[Case], model: Path, card: Card, resolving: Resolve) -> dict[str, tuple[Finding, ...]]:
    found, arguments = dict[str, tuple[Finding, ...]](), dict[str, EngineArguments]()
    with tempfile.TemporaryDirectory() as directory:
        for case in cases:
            try:
                arguments[case.name] = arguments_of(case, model, Path(directory))
            except TandemError as error:
                found[case.name] = (problem(_ARGUMENTS, case.name, error.message, "see docs/vllm.md"),)
        try:
            answers = resolving(tuple(arguments.values()), card) if arguments else ()
        except TandemError as error:
            return found | {name: (unchecked(_ARGUMENTS, name, error.message),) for name in arguments}
    return found | {name: _said(name, card, each) for name, each in zip(arguments, answers, strict=True)}


def _said(pool: str, card: Card, found: Resolved) -> tuple[Finding, ...]:
    if found.problem is not None:
        return (problem(_ARGUMENTS, pool, f"vLLM refuses them: {found.problem}", "change what it names"),)
    scheduling = "on" if found.async_scheduling else "off"
    where = card.name if card.name == PROCESSORS else f"an {card.name}"
    accepted = f"vLLM takes them on {where}; asynchronous scheduling {scheduling}"
    return (ok(_ARGUMENTS, pool, accepted), _backends(pool, found))


def _backends(pool: str, found: Resolved) -> Finding:
    if found.backends is None:
        return unchecked(_BACKENDS, pool, "this vLLM does not say which of them it would take")
    kept = ", ".join(found.backends)
    if found.backends_lost:
        said = f"our arguments exclude {', '.join(found.backends_lost)}; left are {kept or 'none'}"
        return problem(_BACKENDS, pool, said, "leave blockTokens out, so that vLLM chooses the size of blocks")
    if found.connector_lost:
        without = ", ".join(found.connector_lost)
        said = f"vLLM chooses among {kept}; with a KV connector, whosever it is, it takes no {without}"
        return ok(_BACKENDS, pool, f"{said} (unified pools may have kvTransfer: never)")
    return ok(_BACKENDS, pool, f"none is excluded by our arguments; vLLM chooses among {kept}")


def _not_checked(case: Case, model: Path | None, card: Card | None) -> tuple[str, str] | None:
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed here", "`make setup-vllm`, then .venv-vllm/bin/tandem doctor"
    if model is None:
        return "config.json of the model is not on this machine", "give its directory with --model DIRECTORY"
    if card is None:
        known = ", ".join((*CAPABILITIES, *ARCHITECTURES))
        return "the pool's accelerator is none that is known here", f"one of {known}"
    return None


def card_of(case: Case) -> Card | None:
    """The card that the pool's workers run on; None where its kind is not known here."""
    accelerator = case.pool.accelerator
    if case.engine.device != "cuda":
        # Without a bound of its own vLLM asks the machine, so that any answer is as good.
        return Card(PROCESSORS, (0, 0), case.memory_bytes or 64 * _GIB, 1, "cpu")
    if accelerator is None:
        return None
    memory = memory_of(accelerator) or 80 * _GIB
    if (found := _kind(accelerator.type, CAPABILITIES)) is not None:
        return Card(f"NVIDIA {found.upper()}", CAPABILITIES[found], memory, accelerator.per_node)
    if (found := _kind(accelerator.type, ARCHITECTURES)) is None:
        return None
    architecture = ARCHITECTURES[found]
    capability = int(architecture[3]), int(architecture[4], 16)
    return Card(f"AMD {found.upper()}", capability, memory, accelerator.per_node, "rocm", architecture)


def _kind(accelerator: str, known: Iterable[str]) -> str | None:
    kind = plain_name(accelerator)
    return next((name for name in known if kind == name or kind.startswith(f"{name}-")), None)


def arguments_of(case: Case, model: Path, directory: Path) -> EngineArguments:
    """The engine arguments that a worker of the pool gives, without adapters, which lie elsewhere. Raises
    `bad_setting`."""
    transfer = None
    if no_handoff_reason(case) is None:
        transfer = {
            "kv_connector": "TandemConnector",
            "kv_connector_module_path": "tandem.engine.vllm.connector.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"socket": str(directory / "stage")},
        }
    settings = vllm_settings(case.engine).of_role(case.vllm_role)
    return engine_arguments(settings, SchedulerSettings(), model, (), Sockets(directory), transfer)
