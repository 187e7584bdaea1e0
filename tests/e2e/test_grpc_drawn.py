"""The public gRPC door against messages drawn from its protos: every one is answered or refused with a type."""

import logging
from collections import Counter

import grpc
import pytest

from protos import inference_pb2 as pb
from tests.worlds.front_server import serving
from tests.worlds.front_stage import Script
from tests.worlds.grpc_messages_drawn import drawn

_MESSAGES = 600
_FAULTS = ("INTERNAL", "UNKNOWN")


async def test_no_message_is_a_fault_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    codes: Counter[str] = Counter()
    kinds = {"Generate": pb.GenerateRequest, "Resume": pb.ResumeRequest}
    async with serving(Script()) as served, grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        for seed in range(_MESSAGES):
            name = "Resume" if seed % 10 == 0 else "Generate"
            data = drawn(kinds[name], seed)
            call = channel.unary_stream(f"/tandem.v1.Inference/{name}")
            code, details = "OK", "none"
            try:
                async for _ in call(data, timeout=60.0):
                    pass
            except grpc.aio.AioRpcError as error:
                code, details = error.code().name, error.details() or ""
            codes[code] += 1
            assert code not in _FAULTS, (seed, details, data[:200])
            assert details, seed
        assert served.door.bodies.held == 0
    assert [record for record in caplog.records if record.exc_info] == []
    assert codes["OK"] >= 20
    assert codes["INVALID_ARGUMENT"] >= 200
