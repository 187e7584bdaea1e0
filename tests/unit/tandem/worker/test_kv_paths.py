"""What a worker with `nixl` finds out of its memory when it starts, and whom it tells."""

import logging
from dataclasses import replace

import pytest

from kv_transfer.transport.locked_memory import LockedMemory
from tandem.core.errors import TandemError
from tandem.core.metrics import NullMeter
from tandem.devices.topology import RdmaDevice
from tandem.process.tls_settings import TlsSettings
from tandem.worker import kv_paths
from tandem.worker.kv_paths import WORKER_SCHEMES, KvPaths
from tandem.worker.process_settings import KvSettings

MIB = 1 << 20
PORT = RdmaDevice("mlx5_0", active=True, openable=True)


class Gauges(NullMeter):
    """Keeps the last value of each."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def set(self, name: str, value: float, *labels: str) -> None:
        super().set(name, value, *labels)
        self.values[name] = value


def opened(
    monkeypatch: pytest.MonkeyPatch, got: int, device: RdmaDevice = PORT, **settings: int
) -> tuple[KvPaths, Gauges]:
    """The paths of a worker that can lock so many bytes."""
    monkeypatch.setattr(kv_paths, "read_rdma", lambda: (device,))
    reason = "" if got >= 64 * MIB else "Cannot allocate memory"
    monkeypatch.setattr(kv_paths, "try_locking", lambda size: LockedMemory(8 * MIB, size, min(got, size), reason))
    for variable in ("UCX_TLS", "UCX_NET_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    meter = Gauges()
    paths = KvPaths("w", KvSettings(("nixl", "tcp"), **settings), None, meter, TlsSettings(), TlsSettings())
    paths.open(WORKER_SCHEMES)
    return paths, meter


def test_too_little_locked_memory_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    paths, meter = opened(monkeypatch, 8 * MIB)
    assert meter.values == {"tandem_kv_rdma": 0.0, "tandem_kv_lockable_bytes": 8.0 * MIB}
    (problem,) = paths.problems
    assert problem.startswith("nixl: only 8 MiB of 64 MiB can be locked (RLIMIT_MEMLOCK 8 MiB)")
    (record,) = (each for each in caplog.records if "nixl" in str(each.__dict__))
    assert record.levelno == logging.WARNING


def test_with_enough_of_it_rdma_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    paths, meter = opened(monkeypatch, 64 * MIB)
    assert (paths.problems, meter.values["tandem_kv_rdma"]) == ((), 1.0)


@pytest.mark.parametrize("device", [replace(PORT, openable=False), replace(PORT, active=False)])
def test_a_device_of_the_node_that_the_pod_cannot_use_is_none(
    monkeypatch: pytest.MonkeyPatch, device: RdmaDevice
) -> None:
    """In pods sysfs lists what the whole node has."""
    paths, meter = opened(monkeypatch, 64 * MIB, device)
    assert meter.values["tandem_kv_rdma"] == 0.0
    (problem,) = paths.problems
    assert problem.startswith("nixl: mlx5_0 cannot be opened here or has no port that is up")


def test_a_worker_that_is_to_try_nothing_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    paths, meter = opened(monkeypatch, 0, lock_probe=0)
    assert (paths.problems, meter.values) == ((), {"tandem_kv_rdma": 1.0})
    with pytest.raises(TandemError, match="lock_probe = -1"):
        KvSettings(lock_probe=-1)
