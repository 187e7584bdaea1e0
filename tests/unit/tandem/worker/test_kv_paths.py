"""What a worker with `nixl` finds out of its memory when it starts, and whom it tells."""

import logging
from pathlib import Path

import pytest

from kv_transfer.transport.locked_memory import LockedMemory
from tandem.core.errors import TandemError
from tandem.core.metrics import NullMeter
from tandem.process.tls_settings import TlsSettings
from tandem.worker import kv_paths
from tandem.worker.kv_paths import WORKER_SCHEMES, KvPaths
from tandem.worker.process_settings import KvSettings

MIB = 1 << 20


class Gauges(NullMeter):
    """Keeps the last value of each."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def set(self, name: str, value: float, *labels: str) -> None:
        super().set(name, value, *labels)
        self.values[name] = value


def opened(monkeypatch: pytest.MonkeyPatch, devices: Path, got: int, **settings: int) -> tuple[KvPaths, Gauges]:
    """The paths of a worker that can lock so many bytes."""
    (devices / "mlx5_0").mkdir()
    monkeypatch.setattr(kv_paths, "RDMA_DEVICES", str(devices))
    reason = "" if got >= 64 * MIB else "Cannot allocate memory"
    monkeypatch.setattr(kv_paths, "try_locking", lambda size: LockedMemory(8 * MIB, size, min(got, size), reason))
    for variable in ("UCX_TLS", "UCX_NET_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    meter = Gauges()
    paths = KvPaths("w", KvSettings(("nixl", "tcp"), **settings), None, meter, TlsSettings(), TlsSettings())
    paths.open(WORKER_SCHEMES)
    return paths, meter


def test_too_little_locked_memory_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    paths, meter = opened(monkeypatch, tmp_path, 8 * MIB)
    assert meter.values == {"tandem_kv_rdma": 0.0, "tandem_kv_lockable_bytes": 8.0 * MIB}
    (problem,) = paths.problems
    assert problem.startswith("nixl: only 8 MiB of 64 MiB can be locked (RLIMIT_MEMLOCK 8 MiB)")
    (record,) = (each for each in caplog.records if "nixl" in str(each.__dict__))
    assert record.levelno == logging.WARNING


def test_with_enough_of_it_rdma_is_expected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths, meter = opened(monkeypatch, tmp_path, 64 * MIB)
    assert (paths.problems, meter.values["tandem_kv_rdma"]) == ((), 1.0)


def test_a_worker_that_is_to_try_nothing_tries_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths, meter = opened(monkeypatch, tmp_path, 0, lock_probe=0)
    assert (paths.problems, meter.values) == ((), {"tandem_kv_rdma": 1.0})
    with pytest.raises(TandemError, match="lock_probe = -1"):
        KvSettings(lock_probe=-1)
