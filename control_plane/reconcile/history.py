"""Records of revisions that are gone: the newest stay, so that it can be seen what there was."""

from collections.abc import Iterator

from control_plane.objects.names import REVISION, labels_of
from control_plane.observe.observed import Observed
from control_plane.reconcile.desired_state import DesiredState
from control_plane.reconcile.plan import Deletion
from control_plane.reconcile.workers import deletion
from tandem.kube.kinds import CONTROLLER_REVISION, ref_of


def expired_records(observed: Observed, goal: DesiredState) -> Iterator[Deletion]:
    """Records beyond the limit, oldest first. One is never forgotten while anything of its revision is there."""
    if goal.service is None or goal.blocked is not None:
        return
    alive = {each.revision for each in observed.workers} | {goal.status.current_revision, observed.wish.revision}
    old = [
        obj
        for obj in observed.of_kind(CONTROLLER_REVISION)
        if labels_of(obj).get(REVISION) is not None and labels_of(obj)[REVISION] not in alive
    ]
    old.sort(key=lambda obj: (int(obj.get("revision", 0)), str(obj["metadata"]["name"])))
    limit = goal.service.spec.rollout.revision_history_limit
    for obj in old[: max(0, len(old) - limit)]:
        yield deletion(ref_of(obj, CONTROLLER_REVISION), obj)
