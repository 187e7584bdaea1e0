"""The labels by which nodes tell what accelerators they have, read aside every few minutes.

An operator that may not read nodes goes by the names of accelerators.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from control_plane.reconcile.accelerators import NODES, told_labels
from tandem.core.errors import TandemError
from tandem.kube.cluster import Cluster, Selector
from tandem.kube.kinds import NODE
from tandem.process.logs import event

_log = logging.getLogger(__name__)
_AGAIN_S: Final = 600.0
_PAGE: Final = 100
_KINDS_MAX: Final = 1_000
"""Nodes that are told apart; nodes of one kind have the same labels."""


class NodeLabels:
    """`key` is the label that pools are bound to, if any. Calls `on_change` when other labels are found."""

    def __init__(self, cluster: Cluster, key: str | None, on_change: Callable[[], None]) -> None:
        self._cluster = cluster
        self._key = key
        self._on_change = on_change
        self._problem = ""
        self.known: tuple[Mapping[str, str], ...] = ()
        """Each kind of node once."""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                found = await self._read()
            except TandemError as error:
                if error.message != self._problem:
                    event(_log, "nodes_unread", problem=error.message)
                self._problem = error.message
            else:
                self._problem = ""
                if found != self.known:
                    self.known = found
                    self._on_change()
            await asyncio.sleep(_AGAIN_S)

    async def _read(self) -> tuple[Mapping[str, str], ...]:
        kinds: dict[tuple[tuple[str, str], ...], None] = {}
        for label in NODES:
            token = None
            while True:
                page = await self._cluster.list_page(Selector(NODE, None, label), _PAGE, token)
                for node in page.items:
                    told = told_labels(node["metadata"].get("labels") or {}, self._key)
                    if len(kinds) < _KINDS_MAX:
                        kinds[tuple(sorted(told.items()))] = None
                token = page.token
                if token is None:
                    break
        return tuple(dict(each) for each in sorted(kinds))
