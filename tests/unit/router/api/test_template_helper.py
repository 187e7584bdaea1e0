"""Templates are rendered in a process beside the router: as they would be here, and within bounds."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from router.api.chat_templates import supervisor as template_helper
from router.api.chat_templates.backoff import TemplateBackoff
from router.api.chat_templates.chat_template import Message, Tools
from router.api.chat_templates.supervisor import HelperTemplates
from router.api.chat_templates.templates import AMPLE, Bounds, InlineTemplates, Template
from tandem.core.errors import TandemError
from tandem.model.directory import open_model
from tandem.process.system import SystemClock
from tests.unit.router.api.test_chat_template_parts import EITHER, PARTS, TEXT
from tests.worlds.chat_models import FAMILIES
from tests.worlds.rendered import done
from tests.worlds.tool_stage import CLOCK_TOOL, THINKING_TEMPLATE, TOOLS_TEMPLATE, WEATHER

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
SAYS = "{{ messages[0].content }}"
BURNS = (
    "{% if messages[0].content == 'burn' %}"
    "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}{% endif %}" + SAYS
)
GROWS = "{% if messages[0].content == 'grow' %}{{ ('x' * 3000000000) | length }}{% endif %}" + SAYS
LOOPS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
LONG = "{{ messages[0].content * 1000 }}"
FAILING = (
    "{{ raise_exception('roles must alternate') }}",
    "{{ messages[5].content.strip() }}",
    "{{ messages[0].content + 5 }}",
    "{{ messages.append(1) }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ 1 // 0 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
)
SHAPES = (
    "{{ messages | tojson }}{{ tools | tojson }}{{ tools }}{{ messages }}",
    "{{ strftime_now('%Y-%m-%d') }}",
    "{{ '\\ud800' }}é日本🦊" + SAYS,
)
SOURCES = (
    *(family.template for family in FAMILIES),
    *(TOOLS_TEMPLATE, THINKING_TEMPLATE, PARTS, EITHER, TEXT, LONG, BURNS),
    *FAILING,
    *SHAPES,
)
IMAGE = [{"type": "text", "text": "look"}, {"type": "image"}]
CALLS = [
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 10**30, "y": [1.5, None, True]}}}
]
TALKS: tuple[list[Message], ...] = (
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": " é\n"}, {"role": "user", "content": "🦊 <|im_end|>"}],
    [{"role": role, "content": "x"} for role in ("user", "assistant", "user")],
    [{"role": "assistant", "content": "x"}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": CALLS}],
    [{"role": "user", "content": IMAGE}],
)
TOOLS: tuple[Tools | None, ...] = (None, [WEATHER, CLOCK_TOOL])


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, it is processor time that runs out."""
    monkeypatch.setattr(template_helper, "_WALL_S_PER_CPU_S", 1000.0)


def say(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def loaded(templates: HelperTemplates, source: str, name: str = "m") -> Template:
    return templates.load(source, SPECIAL, name, "there")


def on_helper(test: Callable[[HelperTemplates], Awaitable[None]]) -> None:
    """Run `test` on a loop, with a process that is gone afterwards."""
    with helper() as templates:
        asyncio.run(_awaited(test(templates)))


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable


@contextmanager
def helper() -> Iterator[HelperTemplates]:
    templates = HelperTemplates(SystemClock())
    templates.prepare()
    pid = templates.pid
    try:
        yield templates
    finally:
        last = templates.pid or pid
        templates.close()
        assert last is not None
        assert not psutil.pid_exists(last)


async def outcome(template: Template, messages: Sequence[Message], tools: Tools | None) -> object:
    """The prompt, or why there is none."""
    try:
        return await template.render(messages, tools, Bounds(60.0, 1500))
    except TandemError as error:
        return error.code, error.message, error.param, error.retry_after_s


async def problem(awaitable: Awaitable[Any]) -> TandemError:
    with pytest.raises(TandemError) as failed:
        await awaitable
    return failed.value


def test_what_is_rendered_is_what_would_be_rendered_here_and_so_are_the_errors() -> None:
    inline = InlineTemplates(SystemClock())

    async def test(templates: HelperTemplates) -> None:
        for source in SOURCES:
            here, there = inline.load(source, SPECIAL, "m", "there"), loaded(templates, source)
            assert (there.source, list(there.samples)) == (here.source, here.samples)
            for tools in TOOLS:
                expected = [done(outcome(here, messages, tools)) for messages in TALKS]
                asked = [outcome(there, messages, tools) for messages in TALKS]
                assert await asyncio.gather(*asked) == expected
        assert templates.pid == first

    with helper() as templates:
        first = templates.pid
        asyncio.run(test(templates))


def test_the_template_of_a_model_directory_is_rendered_with_its_special_tokens() -> None:
    demo = open_model("demo")
    source = demo.chat_template()
    assert source is not None

    async def test(templates: HelperTemplates) -> None:
        here = InlineTemplates(SystemClock()).load(source, SPECIAL, "demo", "demo")
        assert await loaded(templates, source).render(TALKS[2], None, AMPLE) == done(
            here.render(TALKS[2], None, AMPLE)
        )

    on_helper(test)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% if %}", "there: the chat template cannot be compiled"),
        (LOOPS, "there: the chat template was given up: it took more than 1 s of processor time"),
        ("{% for a in range(40) %}{{ 'x' * 30000000 }}{% endfor %}", "was given up: it took more than 512 MiB"),
    ],
)
def test_a_template_that_cannot_be_tried_is_a_bad_model(source: str, why: str) -> None:
    with helper() as templates:
        with pytest.raises(TandemError, match=why) as failed:
            loaded(templates, source)
        assert failed.value.code == "bad_model"
        assert loaded(templates, SAYS).source == SAYS


def test_a_template_that_takes_for_ever_is_given_up_and_holds_neither_the_loop_nor_others() -> None:
    async def test(templates: HelperTemplates) -> None:
        bad, good = loaded(templates, BURNS, "bad"), loaded(templates, SAYS)
        assert await bad.render(say("fine"), None, AMPLE) == "fine"
        first, order = templates.pid, list[str]()
        busy_s, ticks = time.thread_time(), 0

        async def ask(template: Template, text: str) -> None:
            try:
                order.append(await template.render(say(text), None, AMPLE))
            except TandemError as error:
                order.append(error.message)

        asked = [asyncio.create_task(ask(each, text)) for each, text in ((bad, "burn"), (good, "a"), (bad, "b"))]
        while not asked[0].done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks > 3
        await asyncio.gather(*asked)
        assert time.thread_time() - busy_s < 0.6
        why = "it took more than 1 s of processor time"
        assert order[0] == f"these messages cannot be rendered with the chat template of the model 'bad': {why}"
        # It was behind the one that was given up, and is refused without another second.
        assert order[1].startswith("the chat template of the model 'bad' was given up for the next 30 s: on other")
        assert order[1].endswith(why)
        assert order[2] == "a"
        second = templates.pid
        assert second != first
        refused = await problem(bad.render(say("c"), None, AMPLE))
        assert (refused.code, refused.param) == ("invalid_request", "messages")
        assert await good.render(say("d"), None, AMPLE) == "d"
        assert templates.pid == second

    on_helper(test)


def test_a_template_that_takes_all_memory_is_given_up_and_the_router_does_not_grow() -> None:
    async def test(templates: HelperTemplates) -> None:
        bad, good = loaded(templates, GROWS, "big"), loaded(templates, SAYS)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert psutil.Process(templates.pid).rlimit(psutil.RLIMIT_AS)[0] == 512 << 20
        failed = await problem(bad.render(say("grow"), None, AMPLE))
        assert failed.code == "invalid_request"
        assert failed.message.endswith("the chat template of the model 'big': it took more than 512 MiB of memory")
        assert await good.render(say("a"), None, AMPLE) == "a"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10

    on_helper(test)


def test_a_prompt_that_no_context_could_hold_is_refused() -> None:
    async def test(templates: HelperTemplates) -> None:
        template = loaded(templates, LONG)
        assert len(await template.render(say("ab"), None, Bounds(60.0, 2000))) == 2000
        failed = await problem(template.render(say("abc"), None, Bounds(60.0, 2000)))
        assert (failed.code, failed.param) == ("context_length_exceeded", "messages")
        assert "a prompt of 3000 characters" in failed.message

    on_helper(test)


def test_a_process_that_was_killed_is_started_again_also_for_what_it_was_busy_with() -> None:
    async def test(templates: HelperTemplates) -> None:
        template = loaded(templates, SAYS)
        for _ in range(2):
            assert await template.render(say("a"), None, AMPLE) == "a"
            assert templates.pid is not None
            os.kill(templates.pid, signal.SIGKILL)
        asked = [asyncio.create_task(template.render(say(str(n)), None, AMPLE)) for n in range(40)]
        await asyncio.sleep(0)
        assert templates.pid is not None
        os.kill(templates.pid, signal.SIGKILL)
        assert await asyncio.gather(*asked) == [str(n) for n in range(40)]

    on_helper(test)


def test_a_process_that_was_stopped_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(templates: HelperTemplates) -> None:
        template = loaded(templates, SAYS)
        assert await template.render(say("a"), None, AMPLE) == "a"
        assert templates.pid is not None
        os.kill(templates.pid, signal.SIGSTOP)
        asked = [asyncio.create_task(template.render(say(text), None, AMPLE)) for text in "bc"]
        monkeypatch.setattr(template_helper, "_WALL_S_PER_CPU_S", 1.0)
        await asyncio.sleep(0)
        monkeypatch.setattr(template_helper, "_WALL_S_PER_CPU_S", 1000.0)
        assert "no answer came from the process" in (await problem(asked[0])).message
        # The template need not be at fault: it is not given up for a while.
        assert await asked[1] == "c"

    with helper() as templates:
        loaded(templates, SAYS)
        asyncio.run(test(templates))


def test_who_waits_too_long_is_told_so_and_what_waits_at_the_end_is_ended() -> None:
    async def test(templates: HelperTemplates) -> None:
        bad, good = loaded(templates, BURNS), loaded(templates, SAYS)
        burning = asyncio.create_task(bad.render(say("burn"), None, AMPLE))
        await asyncio.sleep(0)
        late = await problem(good.render(say("a"), None, Bounds(0.01, 10)))
        assert late.code == "deadline_exceeded"
        left = asyncio.create_task(good.render(say("b"), None, AMPLE))
        await asyncio.sleep(0)
        left.cancel()
        templates.close()
        assert (await problem(burning)).code == "draining"

    templates = HelperTemplates(SystemClock())
    templates.prepare()
    asyncio.run(test(templates))


def test_more_templates_than_the_process_keeps_are_rendered() -> None:
    async def test(templates: HelperTemplates) -> None:
        many = [loaded(templates, f"{number} {SAYS}") for number in range(150)]
        for _ in range(2):
            texts = await asyncio.gather(*(each.render(say("a"), None, AMPLE) for each in many))
            assert texts == [f"{number} a" for number in range(150)]

    on_helper(test)


def test_a_conversation_larger_than_the_socket_holds_gets_through() -> None:
    async def test(templates: HelperTemplates) -> None:
        template = loaded(templates, SAYS)
        texts = [letter * (6 << 20) for letter in "xé🦊"]
        assert await asyncio.gather(*(template.render(say(text), None, AMPLE) for text in texts)) == texts

    on_helper(test)


def test_a_process_that_cannot_be_started_is_an_error_of_this_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(templates: HelperTemplates) -> None:
        template = loaded(templates, SAYS)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", "/nonexistent")
            templates.close()
            failed = await problem(template.render(say("a"), None, AMPLE))
            assert failed.code == "internal"
            patched.setattr(sys, "executable", "/bin/false")
            failed = await problem(template.render(say("a"), None, AMPLE))
            assert (failed.code, "does not start" in failed.message) == ("internal", True)
        assert await template.render(say("a"), None, AMPLE) == "a"

    on_helper(test)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_the_process_dies_with_the_router_even_when_it_is_stopped() -> None:
    program = (
        "import os, signal, sys, time\n"
        "from router.api.chat_templates.supervisor import HelperTemplates\n"
        "from tandem.process.system import SystemClock\n"
        "templates = HelperTemplates(SystemClock())\n"
        "templates.prepare()\n"
        "templates.load('a', {}, 'm', 'there')\n"
        "os.kill(templates.pid, signal.SIGSTOP)\n"
        "print(templates.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    home = str(Path(template_helper.__file__).parents[3])
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=home) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        assert psutil.pid_exists(pid)
        running.kill()
    for _ in range(1000):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.01)
    raise AssertionError("it is still there")


def test_templates_are_given_up_for_longer_each_time_and_only_for_conversations_of_that_size() -> None:
    given_up = TemplateBackoff()
    assert given_up.left_s(10, 0.0) == 0.0
    given_up.give_up(100, 0.0, "slow")
    assert (given_up.left_s(1, 10.0), given_up.left_s(1 << 30, 30.0)) == (20.0, 0.0)
    given_up.give_up(1_000_000, 40.0, "slow")
    assert given_up.left_s(500_000, 40.0) == 60.0
    assert given_up.left_s(499_999, 40.0) == 0.0
    given_up.rendered(1000)
    given_up.give_up(400_000, 50.0, "slow")
    assert (given_up.left_s(200_000, 50.0), given_up.left_s(199_999, 50.0)) == (60.0, 0.0)
    now = 50.0
    for longest in (120.0, 240.0, 480.0, 480.0):
        now += 1000.0
        given_up.give_up(100, now, "slow")
        assert given_up.left_s(100, now) == longest
    given_up.rendered(100)
    given_up.give_up(100, now, "slow")
    assert given_up.left_s(100, now) == 30.0
