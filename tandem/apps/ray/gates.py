"""Comparisons of a new revision with the one that serves: the hub runs the Jobs that the operator makes."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from control_plane.objects.names import GATE, gate_name, labels_of
from tandem.apps.ray.pods import NAMESPACE
from tandem.core.errors import TandemError
from tandem.kube.cluster import NotFound
from tandem.kube.kinds import CONFIG_MAP, JOB, Json, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.spec.rollout import TOO_DIFFERENT

_MANAGER: Final = "tandem-ray-gates"
_TRIES: Final = 3
_AGAIN_S: Final = 5.0
_DEADLINE_S: Final = 1800.0
_FLAGS: Final = ("--model-a", "--model-b", "--threshold")


@dataclass(frozen=True)
class Comparison:
    """One comparison: flags of `tandem verify` besides its addresses, and the lines of its prompts."""

    flags: tuple[str, ...]
    prompts: str


Verify = Callable[[Comparison], Awaitable[int]]
"""Makes the comparison; gives the exit status of `tandem verify`. Raises `link_lost` while there is no router."""


class Gates:
    """`look` starts what is to be compared; `close` ends it. A comparison that could not be made is tried again."""

    def __init__(self, cluster: MemoryCluster, verify: Verify, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._verify = verify
        self._say = say
        self._running: dict[str, asyncio.Task[None]] = {}

    def look(self) -> None:
        """Start comparisons of new Jobs and end those whose Job is gone. Raises what a mistake of ours raised."""
        jobs = {str(obj["metadata"]["uid"]): obj for obj in self._cluster.objects(JOB) if GATE in labels_of(obj)}
        for uid, task in list(self._running.items()):
            if task.done() or uid not in jobs:
                task.cancel()
                del self._running[uid]
                if task.done() and not task.cancelled():
                    task.result()
        for uid, job in jobs.items():
            if uid not in self._running and not (job.get("status") or {}).get("conditions"):
                self._running[uid] = asyncio.create_task(self._run(job), name=f"gate {job['metadata']['name']}")

    async def close(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()

    async def _run(self, job: Json) -> None:
        name = str(job["metadata"]["name"])
        ended = "Failed"
        for number in range(_TRIES):
            if number:
                await asyncio.sleep(_AGAIN_S)
            try:
                async with asyncio.timeout(_DEADLINE_S):
                    status = await self._verify(self._comparison(job))
            except (TandemError, OSError) as error:  # a TimeoutError is one, too
                self._say(f"{name}: the comparison could not be made: {error or 'it took too long'}")
                continue
            if status in (0, TOO_DIFFERENT):
                ended = "Failed" if status else "Complete"
                break
            self._say(f"{name}: the comparison ended with status {status}")
        body = {key: job[key] for key in ("apiVersion", "kind")}
        metadata = {"name": name, "namespace": NAMESPACE}
        condition = {"type": ended, "status": "True"}
        with suppress(NotFound):
            await self._cluster.apply_status(
                {**body, "metadata": metadata, "status": {"conditions": [condition]}}, _MANAGER
            )

    def _comparison(self, job: Json) -> Comparison:
        arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
        pairs = zip(arguments[::2], arguments[1::2], strict=True)
        flags = tuple(part for pair in pairs if pair[0] in _FLAGS for part in pair)
        labels = labels_of(job)
        service = next((value for key, value in labels.items() if key.endswith("/service")), "")
        prompts = self._cluster.peek(Ref(CONFIG_MAP, NAMESPACE, gate_name(service, labels[GATE])))
        if prompts is None:
            raise TandemError("not_found", "its prompts are gone")
        return Comparison(flags, str(prompts["data"]["prompts.jsonl"]))


class VerifyProcess:
    """`Verify` by a process beside the hub. `url` gives a router's address, None while there is none."""

    def __init__(self, url: Callable[[], str | None], key: str = "") -> None:
        self._url = url
        self._key = key

    async def __call__(self, comparison: Comparison) -> int:
        url = self._url()
        if url is None:
            raise TandemError("link_lost", "there is no router to ask")
        environment = {**os.environ, **({"OPENAI_API_KEY": self._key} if self._key else {})}
        with tempfile.TemporaryDirectory(prefix="tandem-gate-") as directory:
            prompts = Path(directory) / "prompts.jsonl"
            prompts.write_text(comparison.prompts, "utf-8")
            argv = ("-m", "tandem.apps.cli", "verify", url, url, *comparison.flags, "--prompts", str(prompts))
            process = await asyncio.create_subprocess_exec(
                sys.executable, *argv, stdin=asyncio.subprocess.DEVNULL, env=environment
            )
            try:
                return await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
