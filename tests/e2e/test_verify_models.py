"""`tandem verify` between copies of the demo model, over REST, computed by the torch engine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.api.chat_templates.render import FileRenderer
from router.api.chat_templates.templates import InlineTemplates
from router.generation import Generation, ServedModel, Sink, Usage
from tandem.apps.cli.verify.command import verify
from tandem.apps.cli.verify.compare import DEFAULTS
from tandem.apps.cli.verify.options import VerifyOptions
from tandem.apps.cli.verify.prompts import Prompt
from tandem.apps.cli.verify.report import Report
from tandem.apps.cli.verify.sides import ExistingEndpoint
from tandem.apps.cli.verify.tokenizers import in_files
from tandem.apps.client.http import Target
from tandem.core.errors import TandemError
from tandem.core.kv import unpack_tokens
from tandem.engine.settings import SchedulerSettings
from tandem.engine.torch.settings import TorchSettings
from tandem.model.directory import open_model
from tandem.process.system import SystemClock
from tandem.worker.tokenizer import FileDecoder
from tests.worlds import outputs
from tests.worlds.asking import Ask
from tests.worlds.front_server import serving
from tests.worlds.front_stage import MODEL, Script, Started
from tests.worlds.model_copies import copy_of_demo, other_rope, rounded_to_int8, swapped_entries
from tools.equality.single import SingleEngine

PROMPTS = (
    Prompt(prompt="Once there was a fox who lived near the"),
    Prompt(prompt="The girl found a boat and"),
    Prompt(messages=({"role": "user", "content": "Tell me a story about a fox and a lantern."},)),
)
TOKENS = 10


class EngineScript(Script):
    """Answers by an engine in this process, whole answers at once."""

    def __init__(self, engine: SingleEngine) -> None:
        super().__init__()
        self._engine = engine
        self._answering: list[asyncio.Task[None]] = []

    def start(self, generation: Generation, sink: Sink) -> Started:
        self._answering.append(asyncio.get_running_loop().create_task(self._answer(generation, sink)))
        return Started(generation, sink)

    def models(self) -> tuple[ServedModel, ...]:
        return (ServedModel(MODEL, 4096, (1,)),)

    async def _answer(self, generation: Generation, sink: Sink) -> None:
        prompt = unpack_tokens(generation.prompt)
        answer = await self._engine.ask(Ask("", prompt, generation.stopping, generation.sampling))
        (said,) = answer.sequences
        sink.output(outputs.said(0, 1, said.tokens, said.text, said.logprobs, said.finish, said.stop_reason))
        sink.done(Usage(len(prompt), len(said.tokens), 0))


@contextlib.asynccontextmanager
async def served(path: Path) -> AsyncIterator[Target]:
    """The model at `path`, with float32 so that equal copies are equal in every batch."""
    torch = TorchSettings(str(path), dtype="float32", mode="thread", threads=1, kv_memory_bytes=16 << 20)
    renderer = FileRenderer(open_model(str(path)), InlineTemplates(SystemClock()))
    async with (
        SingleEngine(torch, SchedulerSettings(), FileDecoder(path)) as engine,
        serving(EngineScript(engine), renderer=renderer) as running,
    ):
        yield Target("127.0.0.1", running.port, False, "")


async def compared(first: Path, second: Path) -> Report:
    async with served(first) as one, served(second) as other:
        sides = ExistingEndpoint("A", one), ExistingEndpoint("B", other)
        return await verify(VerifyOptions(sides, PROMPTS, TOKENS, 10, DEFAULTS, 3, 60.0, 60.0, None))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_demo(tmp_path_factory.mktemp("models") / "demo")


async def test_equal_copies_pass(demo: Path, tmp_path: Path) -> None:
    report = await compared(demo, copy_of_demo(tmp_path / "copy"))
    assert report.passed, report
    assert report.verdict.identical == 1.0
    assert report.verdict.positions == sum(each.tokens for each in report.prompts) > TOKENS
    assert report.verdict.kl_max < 1e-6
    assert in_files(open_model(str(demo)), open_model(str(tmp_path / "copy"))) is None


async def test_a_wrong_rope_base_is_caught(demo: Path, tmp_path: Path) -> None:
    report = await compared(demo, copy_of_demo(tmp_path / "rope", other_rope))
    assert not report.passed
    assert [failure.split()[0] for failure in report.verdict.failures] == ["agreement", "kl"]
    assert not report.tokenizer


async def test_an_int8_copy_is_caught(demo: Path, tmp_path: Path) -> None:
    report = await compared(demo, copy_of_demo(tmp_path / "int8", rounded_to_int8))
    assert any(failure.startswith("kl ") for failure in report.verdict.failures), report.verdict
    assert not report.tokenizer


async def test_a_swapped_tokenizer_is_caught_and_named(demo: Path, tmp_path: Path) -> None:
    copy = copy_of_demo(tmp_path / "swapped", swapped_entries)
    report = await compared(demo, copy)
    assert not report.passed
    assert any(each.startswith("tokenizer") for each in report.tokenizer), report
    finding = in_files(open_model(str(demo)), open_model(str(copy)))
    assert finding is not None
    assert "2 entries of the vocabulary" in finding


async def test_a_side_that_cannot_be_asked_is_named(demo: Path) -> None:
    gone = ExistingEndpoint("B", Target("127.0.0.1", 9, False, ""))
    options = VerifyOptions((gone, gone), PROMPTS, TOKENS, 10, DEFAULTS, 1, 5.0, 5.0, None)
    with pytest.raises(TandemError, match=r"^B: no model list"):
        await verify(options)
