"""What a worker says whose engine's packages are not installed: which extra has them."""

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from tandem.core.errors import TandemError
from tandem.process.system import SystemClock
from tandem.worker.engines import build_engine
from tandem.worker.process_settings import WorkerSettings
from tandem.worker.simple_decoder import SimpleDecoder


@pytest.mark.parametrize(
    ("engine", "missing", "advice"),
    [
        ("torch", ("torch", "safetensors"), "no torch and no safetensors here; pip install 'tandem-serve[torch]'"),
        ("torch", ("safetensors",), "no safetensors here; pip install 'tandem-serve[torch]'"),
        ("vllm", ("vllm",), "vLLM is not installed here; `make setup-vllm` makes an environment that has it"),
    ],
)
def test_a_missing_engine_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, engine: str, missing: tuple[str, ...], advice: str
) -> None:
    there = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in missing else there(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    settings = WorkerSettings(worker_id="d0", role="decode", engine=engine, model="demo")
    with pytest.raises(TandemError, match="engine = ") as raised:
        build_engine(settings, SimpleDecoder(), SystemClock(), 1, lambda share, what: None)
    assert (raised.value.code, raised.value.param) == ("bad_setting", "engine")
    assert advice in raised.value.message
