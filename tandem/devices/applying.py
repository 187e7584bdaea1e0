"""Binds this process to what lies next to its GPUs, and says so."""

import ctypes
import errno
import logging
import os
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Final

from tandem.core.errors import TandemError
from tandem.devices.binding import Binding, binding_of
from tandem.devices.reading import read_topology
from tandem.devices.topology import Topology
from tandem.devices.visible import first_seen

_PREFERRED_MANY: Final = 5
"""Of <linux/mempolicy.h>: memory of these nodes while they have some, then of any."""
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
"""The system call's number. The C library has no function for it."""
_BITS: Final = 1024
"""Linux has at most so many nodes."""

_log = logging.getLogger(__name__)


def bind(
    ranks: int,
    environment: MutableMapping[str, str],
    *,
    ranks_bind: bool = False,
    read: Callable[[], Topology | None] = read_topology,
) -> Binding:
    """Bind all threads of this process, and what it starts from now on, for the first `ranks` GPUs it sees.

    Takes as long as the vendor's tool, at most a minute. What cannot be bound is logged and left: it costs speed
    only.
    """
    topology = read()
    if topology is None:
        _log.info("devices: not bound: neither nvidia-smi nor rocm-smi tells of a GPU")
        return Binding()
    try:
        gpus = first_seen(topology, environment, ranks)
    except TandemError as error:
        # The engine refuses to start on such GPUs in its own words.
        _log.warning("devices: not bound: %s", error.message)
        return Binding()
    found = binding_of(topology, gpus, os.sched_getaffinity(0), environment, ranks_bind=ranks_bind)
    environment.update(found.environment)
    for reason in found.reasons:
        _log.info("devices: %s", reason)
    if found.cpus:
        _run_on(found.cpus)
        _take_memory_of(found.nodes)
    return found


def _run_on(cpus: tuple[int, ...]) -> None:
    """All threads: libraries have started some by now."""
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cpus)
        except ProcessLookupError:
            continue
        except OSError as error:
            _log.warning("devices: not bound to CPUs: %s", error.strerror)
            return


def _take_memory_of(nodes: tuple[int, ...]) -> None:
    """Of this thread and of all that it starts. Memory of pages that bound CPUs touch first lies there anyway."""
    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return
    words = (ctypes.c_ulong * (_BITS // 64))()
    for node in nodes:
        words[node // 64] |= 1 << (node % 64)
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ctypes.c_long(number), _PREFERRED_MANY, words, ctypes.c_ulong(_BITS)) == 0:
        return
    code = ctypes.get_errno()
    # Containers may not, unless their seccomp profile or the capability SYS_NICE lets them.
    why = "this container may not" if code == errno.EPERM else os.strerror(code)
    _log.info("devices: memory policy stays as it is (%s); pages lie where bound CPUs touch them first", why)
