"""Binds this process to the hardware next to its GPUs, and logs what was bound."""

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
from tandem.devices.visible import seen_at

_PREFERRED: Final = 1
"""The mode of <linux/mempolicy.h> that takes memory of one node while it has some, then of any."""
_PREFERRED_MANY: Final = 5
"""Of <linux/mempolicy.h>: memory of several nodes while they have some, then of any; Linux has it from 5.15 on."""
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
"""The system call's number. The C library has no function for it."""
_BITS: Final = 1024
"""Linux has at most so many nodes."""

_log = logging.getLogger(__name__)


def bind(
    gpus: range,
    environment: MutableMapping[str, str],
    *,
    ranks_bind: bool = False,
    read: Callable[[], Topology | None] = read_topology,
) -> Binding:
    """Bind all threads of this process, and what it starts from now on, for the GPUs at these positions among those
    it sees.

    Takes as long as the vendor's tool, at most a minute. What cannot be bound is logged and left: it costs speed
    only.
    """
    topology = read()
    if topology is None:
        _log.info("devices: not bound: neither nvidia-smi nor rocm-smi tells of a GPU")
        return Binding()
    try:
        taken = seen_at(topology, environment, gpus)
    except TandemError as error:
        # The engine refuses to start on such GPUs in its own words.
        _log.warning("devices: not bound: %s", error.message)
        return Binding()
    if not taken:
        hidden = "this process does not see the GPUs that its engine would take"
        _log.warning("devices: not bound: %s (%s may hide them)", hidden, topology.variable)
        return Binding()
    found = binding_of(topology, taken, os.sched_getaffinity(0), environment, ranks_bind=ranks_bind)
    environment.update(found.environment)
    failed = (_run_on(found.cpus), _take_memory_of(found.nodes)) if found.cpus else ()
    of_cpus, *others = found.reasons
    for reason in ("; ".join((of_cpus, *filter(None, failed))), *others):
        _log.info("devices: %s", reason)
    return found


def _run_on(cpus: tuple[int, ...]) -> str:
    """All threads: libraries have started some by now. What is not done, and why; empty where it is."""
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cpus)
        except ProcessLookupError:
            continue
        except OSError as error:
            return f"not bound to these CPUs ({error.strerror})"
    return ""


def _take_memory_of(nodes: tuple[int, ...]) -> str:
    """Prefer the memory of `nodes` for this thread and everything that it starts. Memory of pages that bound CPUs
    touch first lies there anyway. Returns what was not done and why; empty when it was done."""
    code = _set_policy(_PREFERRED_MANY, nodes)
    if code == errno.EINVAL and len(nodes) == 1:
        code = _set_policy(_PREFERRED, nodes)
    if code == 0:
        return ""
    # Containers may not, unless their seccomp profile or the capability SYS_NICE lets them.
    why = "this container may not" if code == errno.EPERM else os.strerror(code)
    return f"memory policy stays as it is ({why}), pages lie where bound CPUs touch them first"


def _set_policy(mode: int, nodes: tuple[int, ...]) -> int:
    """Zero, or the system's number of what went wrong."""
    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return errno.ENOSYS
    words = (ctypes.c_ulong * (_BITS // 64))()
    for node in nodes:
        words[node // 64] |= 1 << (node % 64)
    library = ctypes.CDLL(None, use_errno=True)
    done = library.syscall(ctypes.c_long(number), mode, words, ctypes.c_ulong(_BITS)) == 0
    return 0 if done else ctypes.get_errno()
