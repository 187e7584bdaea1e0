"""Renders `Templates` in a process beside the router, so that no template holds the loop, the interpreter or memory.

Requests go to the process in order, a few ahead of their answers. A template that takes too much for one request ends
with the process (`child`): that request fails, a new process continues with the others, and the template is
not tried again for a while (`backoff`).
"""

import asyncio
import itertools
import json
import logging
import marshal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec

from router.api.chat_templates.backoff import TemplateBackoff
from router.api.chat_templates.chat_template import Message, Tools
from router.api.chat_templates.child import Definition, allowance_s
from router.api.chat_templates.process import MEMORY_BYTES_MAX, ChildReply, ProcessExit, TemplateProcess
from router.api.chat_templates.templates import Bounds
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_AHEAD_MAX: Final = 16
_WALL_S_PER_CPU_S: Final = 20.0
"""A busy machine may give the process this small a share of a core."""
_TRIALS: Final = 2
_LOOK_S: Final = 0.002


class HelperTemplate:
    """`Template` of a `HelperTemplates`."""

    def __init__(
        self, helper: "HelperTemplates", number: int, model: str, definition: Definition, samples: Sequence[str]
    ) -> None:
        self._helper = helper
        self.number = number
        self.model = model
        self.definition = definition
        self.source = definition[0]
        self.samples = samples
        self.given_up = TemplateBackoff()

    async def render(self, messages: Sequence[Message], tools: Tools | None, bounds: Bounds) -> str:
        return await self._helper.render(self, messages, tools, bounds)


class _Rendering:
    """A conversation that waits for its prompt."""

    __slots__ = ("answer", "asked", "template", "trials")

    def __init__(self, template: HelperTemplate, asked: bytes, answer: "asyncio.Future[ChildReply]") -> None:
        self.template = template
        self.asked = asked
        self.answer = answer
        self.trials = 0

    def fail(self, error: TandemError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class HelperTemplates:
    """Renders the chat templates of one router in a helper process. The bytes of bodies in hand (`BodyBudget`) bound
    the number of conversations that wait."""

    def __init__(self, clock: Clock, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self.clock = clock
        self._memory_bytes_max = memory_bytes_max
        self._numbers = itertools.count()
        self._prepared: TemplateProcess | None = None
        self._process: TemplateProcess | None = None
        self._waiting: deque[_Rendering] = deque()
        self._sent: deque[_Rendering] = deque()
        """Renderings sent to the process, in the order of their answers; the process is busy with the first."""
        self._unsent = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which the process is read from."""
        self._stall: asyncio.TimerHandle | None = None
        self._stalled = False
        self._ending = False
        """Whether it is being found out why the process has ended."""

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        process = self._process or self._prepared
        return None if process is None else process.pid

    def prepare(self) -> None:
        """Start the process, which takes a while to be there: the first template loaded and rendered is with it. For
        the thread of the loop. Raises `internal`."""
        self._prepared = self._started()

    def load(self, source: str, special_tokens: Mapping[str, str], model: str, origin: str) -> HelperTemplate:
        definition, number = (source, dict(special_tokens), origin), next(self._numbers)
        samples = self._samples(number, definition)
        return HelperTemplate(self, number, model, definition, samples)

    def _samples(self, number: int, definition: Definition) -> Sequence[str]:
        """Raises `bad_model`, `internal`."""
        trials = 0
        while True:
            trials += 1
            with self._loading() as process:
                frame = process.request(number, definition, self.clock.wall(), b"")
                found = process.ask(frame, _WALL_S_PER_CPU_S * allowance_s(0))
                if isinstance(found, ChildReply):
                    return msgspec.convert(json.loads(found.checked()), list[str])
            if found.blamed or trials == _TRIALS:
                raise TandemError("bad_model", f"{definition[2]}: the chat template was given up: {found.why}")

    @contextmanager
    def _loading(self) -> Iterator[TemplateProcess]:
        """The process that was prepared, for as long as none renders with it, or one for this alone: threads that
        load have no other."""
        process, self._prepared = self._prepared, None
        kept = process is not None
        process = process or self._started()
        try:
            yield process
        finally:
            if kept and process.alive:
                self._prepared = process
            else:
                process.close()

    async def render(
        self, template: HelperTemplate, messages: Sequence[Message], tools: Tools | None, bounds: Bounds
    ) -> str:
        """See `Template`."""
        values: Any = messages, tools, bounds.characters_max
        asked = marshal.dumps(values)
        left_s = template.given_up.left_s(len(asked), self.clock.now())
        if left_s:
            raise _refused(template, left_s)
        rendering = _Rendering(template, asked, asyncio.get_running_loop().create_future())
        self._waiting.append(rendering)
        self._send()
        try:
            async with asyncio.timeout(bounds.within_s):
                answer = await rendering.answer
        except TimeoutError:
            problem = f"the prompt was not rendered within {max(0.0, bounds.within_s):.1f} s"
            raise TandemError("deadline_exceeded", problem) from None
        return answer.checked()

    def close(self) -> None:
        """End the process. What waits fails with `draining`."""
        if self._process is not None:
            self._detach(self._process)
        for process in (self._process, self._prepared):
            if process is not None:
                process.close()
        self._process = self._prepared = None
        for rendering in (*self._sent, *self._waiting):
            rendering.fail(TandemError("draining", "the router is stopping", retry_after_s=1.0))
        self._sent.clear()
        self._waiting.clear()

    def _send(self) -> None:
        """Let the process have what waits, as far as it is not too far ahead of the answers."""
        while self._waiting and len(self._sent) < _AHEAD_MAX and not self._ending:
            rendering = self._waiting.popleft()
            if rendering.answer.done():
                continue
            left_s = rendering.template.given_up.left_s(len(rendering.asked), self.clock.now())
            if left_s:
                rendering.fail(_refused(rendering.template, left_s))
                continue
            try:
                process = self._process or self._attach()
            except TandemError as error:
                rendering.fail(error)
                continue
            template = rendering.template
            self._unsent += process.request(template.number, template.definition, self.clock.wall(), rendering.asked)
            self._sent.append(rendering)
            if len(self._sent) == 1:
                self._watch()
        self._write()

    def _started(self) -> TemplateProcess:
        """Raises `internal`."""
        try:
            return TemplateProcess(self._memory_bytes_max)
        except OSError as error:
            problem = f"the process that renders chat templates cannot be started: {error}"
            raise TandemError("internal", problem) from error

    def _attach(self) -> TemplateProcess:
        """Have a process on the loop. Raises `internal`."""
        process, self._prepared = self._prepared or self._started(), None
        process.socket.setblocking(False)
        self._process, self._stalled, self._loop = process, False, asyncio.get_running_loop()
        self._loop.add_reader(process.socket, self._read)
        return process

    def _detach(self, process: TemplateProcess) -> None:
        self._unsent.clear()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(process.socket)
            self._loop.remove_writer(process.socket)

    def _write(self) -> None:
        process = self._process
        if process is None or not self._unsent:
            return
        with suppress(BlockingIOError, ConnectionError):  # at the end of the connection there is something to read
            del self._unsent[: process.socket.send(self._unsent)]
        loop = asyncio.get_running_loop()
        if self._unsent:
            loop.add_writer(process.socket, self._write)
        else:
            loop.remove_writer(process.socket)

    def _read(self) -> None:
        assert self._process is not None, "nothing is read without a process"
        try:
            answers = self._process.answers()
        except BlockingIOError:
            return
        if answers is None:
            self._end(self._process)
            return
        for answer in answers:
            rendering = self._sent.popleft()
            rendering.template.given_up.rendered(len(rendering.asked))
            if not rendering.answer.done():
                rendering.answer.set_result(answer)
        if answers:
            self._watch()
            self._send()

    def _watch(self) -> None:
        """Bound the time that the process may take for the first request."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self._sent and self._process is not None:
            within_s = _WALL_S_PER_CPU_S * allowance_s(len(self._sent[0].asked))
            self._stall = asyncio.get_running_loop().call_later(within_s, self._stop_stalled)

    def _stop_stalled(self) -> None:
        assert self._process is not None, "a process is watched only while there is one"
        self._stalled = True
        self._process.kill()

    def _end(self, process: TemplateProcess) -> None:
        """The process has closed its end. What it has not come to goes to the next one."""
        self._detach(process)
        process.kill()
        self._process, self._ending = None, True
        busy_with = self._sent.popleft() if self._sent else None
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        self._find_out(process, busy_with)

    def _find_out(self, process: TemplateProcess, busy_with: _Rendering | None) -> None:
        """Find out why the process has ended, which can be known only a moment after its end of the socket has
        closed."""
        ending = process.ending(len(busy_with.asked) if busy_with is not None else 0)
        if ending is None:
            asyncio.get_running_loop().call_later(_LOOK_S, self._find_out, process, busy_with)
            return
        process.close()
        self._ending = False
        if busy_with is not None:
            self._settle(busy_with, ending, process.ready)
        if not self._waiting and process.ready:
            with suppress(TandemError):  # it is tried again for the next request, which hears of it
                self._attach()
        self._send()

    def _settle(self, rendering: _Rendering, ending: ProcessExit, ready: bool) -> None:
        """Settle the request that the process ended with: one that may not be at fault is tried once more, any other
        fails."""
        template = rendering.template
        rendering.trials += 1
        why = "no answer came from the process that renders it" if self._stalled else ending.why
        if not ending.blamed and not self._stalled and rendering.trials < _TRIALS:
            self._waiting.appendleft(rendering)
            return
        if not ready:
            rendering.fail(TandemError("internal", f"the process that renders chat templates does not start: {why}"))
            return
        event(_log, "chat_template_given_up", level=logging.WARNING, model=template.model, reason=why)
        if not self._stalled:
            template.given_up.give_up(len(rendering.asked), self.clock.now(), why)
        problem = f"these messages cannot be rendered with the chat template of the model {template.model!r}: {why}"
        rendering.fail(TandemError("invalid_request", problem, param="messages"))


def _refused(template: HelperTemplate, left_s: float) -> TandemError:
    return TandemError(
        "invalid_request",
        f"the chat template of the model {template.model!r} was given up for the next {left_s:.0f} s: "
        f"on other messages {template.given_up.why}",
        param="messages",
    )
