"""Whether the CustomResourceDefinitions of the cluster are those that this operator knows."""

import logging

from control_plane.crds.definitions import SCHEMA_ANNOTATION, definitions
from control_plane.objects.names import annotations_of
from tandem.core.errors import TandemError
from tandem.kube.cluster import Cluster, NotFound
from tandem.kube.kinds import CUSTOM_RESOURCE, Ref
from tandem.process.logs import event

_log = logging.getLogger(__name__)


async def check_schemas(cluster: Cluster) -> None:
    """Raises `bad_setting` when a definition is missing. One of another version is only logged: fields are read
    without strictness, so that charts can be upgraded one after the other."""
    for plural, ours in definitions().items():
        name = ours["metadata"]["name"]
        try:
            there = await cluster.get(Ref(CUSTOM_RESOURCE, "", name))
        except NotFound as error:
            problem = f"the cluster has no {name}: install the chart tandem-crds first"
            raise TandemError("bad_setting", problem) from error
        except TandemError as error:
            if error.code != "not_allowed":
                raise
            # A role of one namespace may not look at definitions.
            event(_log, "schema_not_checked", level=logging.WARNING, kind=plural, problem=error.message)
            continue
        wanted, found = annotations_of(ours)[SCHEMA_ANNOTATION], annotations_of(there).get(SCHEMA_ANNOTATION, "")
        if found != wanted:
            advice = f"upgrade the chart tandem-crds: this operator knows schema {wanted}, the cluster has {found}"
            event(_log, "schema_differs", level=logging.WARNING, kind=plural, advice=advice)
