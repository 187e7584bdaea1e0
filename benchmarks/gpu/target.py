"""The device that is measured, its sizes, and a clock that knows when its work is done."""

import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from benchmarks.gpu.results import Machine

_SMI_S = 20.0


@dataclass(frozen=True)
class Target:
    """`tiny` takes sizes that need no GPU; `folder` is for files of the run."""

    device: torch.device
    tiny: bool
    folder: Path

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def sized(self, full: int, tiny: int) -> int:
        """A size of the run."""
        return tiny if self.tiny else full

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], rounds: int = 5) -> float:
        """The median of `rounds` after one that does not count, until the device is done."""
        times = []
        for _ in range(rounds + 1):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - began)
        return median(times[1:])

    def machine(self) -> Machine:
        """What is named beside every figure."""
        name, memory, driver = platform.processor() or platform.machine(), 0, "none"
        if self.on_gpu:
            properties = torch.cuda.get_device_properties(self.device)
            name, memory, driver = properties.name, properties.total_memory, _driver()
        return Machine(
            device=str(self.device),
            name=name,
            driver=driver,
            memory_bytes=memory,
            torch=torch.__version__,
            python=platform.python_version(),
            cores=len(os.sched_getaffinity(0)),
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            tiny=self.tiny,
        )


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.splitlines()[0].strip() if done.stdout.strip() else "unknown"
