"""The specification that a ModelService asks for, read and checked, with its revision."""

from itertools import chain

import msgspec

from control_plane.objects.installation import Installation, completed
from control_plane.objects.template_rules import template_problems
from control_plane.observe.observed import DesiredSpec
from tandem.kube.kinds import Json
from tandem.spec.checking import broken
from tandem.spec.cluster_rules import CLUSTER_RULES
from tandem.spec.reading import problems, readable
from tandem.spec.revision import revision_of
from tandem.spec.service import ModelService


def read_desired_spec(obj: Json, installation: Installation) -> DesiredSpec:
    """The specification that `obj` asks for. Never raises: a specification that cannot be read or is not allowed
    becomes the `problem` of the result."""
    try:
        # What the control plane itself wrote is of no matter here, and may be of a newer one.
        service = msgspec.convert({key: obj[key] for key in obj if key != "status"}, ModelService)
    except msgspec.ValidationError as error:
        return DesiredSpec(None, problem=readable(str(error), obj))
    of_clusters = broken(service, rules=CLUSTER_RULES)
    found = next(chain(problems(service), of_clusters, template_problems(service, installation)), None)
    whole = completed(service, installation)
    revision = revision_of(whole.spec, installation.worker_defaults.plain, tenant=bool(installation.tenants))
    return DesiredSpec(whole, revision, found, service)
