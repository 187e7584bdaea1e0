"""A gRPC client whose call breaks gets the rest with `Resume`; places travel in the chunks."""

from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest

from protos import inference_pb2 as pb
from router.api.settings import ApiSettings
from router.http_server.response_writer import ResponseWriterLimits
from tests.e2e.test_grpc_client import eventually, request, stub
from tests.unit.router.api.test_front_resume import TOKENS, ResumableScript
from tests.worlds.front_server import Served, serving


async def resume(served: Served, name: str, positions: tuple[int, ...]) -> list[pb.GenerateChunk]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        call: Any = stub(channel).Resume(pb.ResumeRequest(request_id=name, positions=positions), timeout=100)
        return [chunk async for chunk in call]


def texts(chunks: list[pb.GenerateChunk]) -> dict[int, str]:
    said: dict[int, str] = {}
    for chunk in chunks:
        said[chunk.index] = said.get(chunk.index, "") + chunk.text
    return said


async def test_a_broken_call_goes_on_where_it_ended() -> None:
    script = ResumableScript(words=3)
    async with serving(script, settings=ApiSettings(outlet=ResponseWriterLimits(buffer_bytes=600))) as served:
        served.door.services = replace(served.door.services, resumer=script)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
            asked = request(resumable=True, parameters=pb.Parameters(n=2, logprobs=1))
            call = stub(channel).Generate(asked, metadata=(("x-request-id", "mine"),), timeout=100)
            had = [await call.read() for _ in range(3)]
            call.cancel()
        assert [list(chunk.positions) for chunk in had] == [[1, 0], [1, 1], [2, 1]]
        kept = script.kept["mine"]
        await eventually(lambda: kept.left)
        script.say(kept, 3, TOKENS)
        rest = await resume(served, "mine", tuple(had[-1].positions))
        whole = await resume(served, "mine", ())
        before, after = texts(had), texts(rest)
        assert {index: before[index] + after[index] for index in before} == texts(whole)
        assert rest[-1].usage.completion_tokens == 2 * TOKENS
        assert list(rest[-1].positions) == [TOKENS, TOKENS]
        for name, positions, code in (
            ("other", (), grpc.StatusCode.NOT_FOUND),
            ("mine", (9, 1), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await resume(served, name, positions)
            assert refused.value.code() is code
