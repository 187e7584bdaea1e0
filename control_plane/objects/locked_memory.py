"""Gives workers the right to lock memory without a bound, which registering it with RDMA devices takes. Pure.

Kubernetes gives the capabilities of a container to root alone: to another user IPC_LOCK is no right at all. So the
container begins as root, with that capability and the one that changes the user, and `setpriv` makes it the worker's
user before anything of the worker runs, with IPC_LOCK in force and no other right.
"""

from typing import Any, Final

from tandem.kube.kinds import Json

ROOT: Final = 0
_LOCK: Final = "IPC_LOCK"
_CHANGE_USER: Final = "SETUID"
_PROGRAM: Final = "setpriv"


def with_locked_memory(template: Json, name: str, user: int, *, unlimited: bool) -> Json:
    """The pod template whose container `name`, which is to run as `user`, may lock memory. Workers whose template
    makes them root get the capability alone; others get it where the pool asks for it."""
    if user != ROOT and not unlimited:
        return template
    spec = template["spec"]
    locking = _as_root if user == ROOT else _becoming
    containers = [locking(each, user) if each["name"] == name else each for each in spec["containers"]]
    return {**template, "spec": {**spec, "containers": containers}}


def _as_root(container: Json, _user: int) -> Json:
    """A template that says which capabilities are added is left alone."""
    context, said = _added(container)
    return {**container, "securityContext": _adding(context, [_LOCK] if said is None else said)}


def _becoming(container: Json, user: int) -> Json:
    context, said = _added(container)
    added = [*(said or ()), *(each for each in (_LOCK, _CHANGE_USER) if each not in (said or ()))]
    become = [_PROGRAM, f"--reuid={user}", "--inh-caps=+ipc_lock", "--ambient-caps=+ipc_lock", "--"]
    return {
        **container,
        "command": [*become, *container.get("command", ())],
        "securityContext": {**_adding(context, added), "runAsUser": ROOT, "runAsNonRoot": False},
    }


def _added(container: Json) -> tuple[Json, list[str] | None]:
    context = container.get("securityContext") or {}
    return context, (context.get("capabilities") or {}).get("add")


def _adding(context: Json, names: list[str]) -> dict[str, Any]:
    return {**context, "capabilities": {**(context.get("capabilities") or {}), "add": names}}
