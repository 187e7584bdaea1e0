"""`tandem demo`: runs the whole path once on this machine and proves that every part of it happened.

Starts a router, one prefill and one decode worker with the demo model, requests one chat answer, prints it and its
explained timeline, checks the hand-off in the trace, and stops.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tandem.apps.cli.display import LineDisplay
from tandem.apps.cli.platform import Platform
from tandem.apps.cli.request_trace import ROOT, RequestTrace, assemble_trace, handoff_problems
from tandem.apps.cli.router_client import refusal, send_request, spans_of
from tandem.apps.cli.supervisor import Supervisor
from tandem.apps.cli.timeline import render
from tandem.apps.cli.up import cleaning_up
from tandem.apps.cli.up_options import parse as parse_up
from tandem.core.errors import TandemError

_START_S: Final = 45.0
_ANSWER_S: Final = 30.0
_STORY_S: Final = 5.0
_MAX_TOKENS: Final = 64
# Long enough that several KV blocks have to travel.
_CHAT: Final = (
    ("system", "You are a storyteller."),
    ("user", "Tell me a short story about a fox and a lantern."),
    (
        "assistant",
        "Once there was a fox who lived near the harbor. One evening she found a lantern on the path. She carried it "
        "home, and everybody on the way could see where to go.",
    ),
    ("user", "Who was the story about?"),
    ("assistant", "The hero of the story was the fox."),
    ("user", "Where did it happen?"),
    ("assistant", "It happened near the harbor."),
    ("user", "Tell me more."),
    (
        "assistant",
        "The next evening the fox put the lantern in her window. A boat that had lost its way saw the light and came "
        "home. The people of the harbor thanked the fox, and from then on the lantern burned every night. When the "
        "wind was strong and the water was dark, everybody looked for the light in the window of the fox.",
    ),
    ("user", "What happened then?"),
    (
        "assistant",
        "In the morning the children came to the house of the fox and brought bread and apples. They sat down by the "
        "river and ate together, and the fox told them how she had found the lantern on the path. Then they all went "
        "home, and in the evening the lantern was burning again.",
    ),
    ("user", "Tell me a story about a girl and a boat."),
)


class ChatCompletion(msgspec.Struct):
    """The parts of a chat completion that are shown."""

    id: str
    choices: tuple[dict[str, Any], ...]
    usage: dict[str, Any]

    @property
    def text(self) -> str:
        return str(self.choices[0]["message"]["content"])


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 only when the request went through prefill, transfer and decode and all processes stopped."""
    parser = argparse.ArgumentParser(prog="tandem demo", description="One request through prefill, transfer, decode.")
    parser.add_argument("--engine", choices=("torch", "simulated"), default="torch")
    parser.add_argument("--model", default="demo", help="demo, a model directory or a hub id")
    given = parser.parse_args(arguments)
    up = ["--engine", given.engine, "--model", given.model, "--prefill", "1", "--decode", "1", "--port", "0"]
    began = time.monotonic()
    # Placement may find, rightly, that a small model computes a prompt faster than it hands it over.
    platform = Platform(parse_up(up).service, os.environ, ("--core.placement.prefer", "disaggregated"))
    with cleaning_up(platform):
        problems = asyncio.run(_demo(platform, began))
    for problem in problems:
        print(f"demo: {problem}", file=sys.stderr)
    verdict = "FAILED" if problems else "OK: prefill → transfer → decode, exact hand-off"
    print(f"\ndemo: {verdict}, {time.monotonic() - began:.1f} s")
    return 1 if problems else 0


async def _demo(platform: Platform, began: float) -> list[str]:
    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {line}", flush=True)

    async def work(supervisor: Supervisor) -> list[str]:
        await platform.ready(supervisor, _START_S)
        answer = await _chat(platform)
        say(f"answer to {_CHAT[-1][1]!r}:\n\n{answer.text.strip()}\n")
        story = await _story(platform, answer.id)
        print(render(story) + "\n", flush=True)
        return handoff_problems(story) + ([] if answer.text.strip() else ["the answer is empty"])

    problems = await platform.run(LineDisplay(say), work)
    unclean = [member.name for member in platform.members if member.exit_status != 0]
    return problems + [f"{name} did not stop cleanly" for name in unclean]


async def _chat(platform: Platform) -> ChatCompletion:
    messages = [{"role": role, "content": content} for role, content in _CHAT]
    body = {"model": platform.service.model_name, "messages": messages, "max_tokens": _MAX_TOKENS, "temperature": 0}
    status, answer = await send_request(
        platform.target, "POST", "/v1/chat/completions", msgspec.json.encode(body), timeout_s=_ANSWER_S
    )
    if status != 200:
        raise TandemError("engine_failed", f"the request was refused: {refusal(status, answer)}")
    return msgspec.json.decode(answer, type=ChatCompletion)


async def _story(platform: Platform, request_id: str) -> RequestTrace:
    """The request's spans once both workers have reported theirs, which they do just after the answer."""
    deadline = time.monotonic() + _STORY_S
    while True:
        spans = await spans_of(platform.target, request_id)
        story = assemble_trace(spans)
        if (story.named(ROOT) and not handoff_problems(story)) or time.monotonic() > deadline:
            return story
        await asyncio.sleep(0.05)
