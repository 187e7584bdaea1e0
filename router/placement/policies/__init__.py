"""The placement policies by their names in the settings."""

from typing import Final

from router.placement.policies.consistent_hash import ConsistentHash
from router.placement.policies.least_loaded import LeastLoaded
from router.placement.policies.power_of_two import PowerOfTwo
from router.placement.policies.prefix_aware import PrefixAware
from router.placement.policies.round_robin import RoundRobin
from router.placement.policy import Policy
from router.settings import PlacementSettings
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError

POLICIES: Final = ("prefix_aware", "least_loaded", "round_robin", "power_of_two", "consistent_hash")


def make_policy(settings: PlacementSettings, entropy: Entropy) -> Policy:
    """The policy that the settings name. Raises `bad_setting` when there is none of that name."""
    match settings.policy:
        case "prefix_aware":
            return PrefixAware(settings)
        case "least_loaded":
            return LeastLoaded()
        case "round_robin":
            return RoundRobin()
        case "power_of_two":
            return PowerOfTwo(entropy)
        case "consistent_hash":
            return ConsistentHash()
    expected = ", ".join(POLICIES)
    message = f"placement.policy = {settings.policy!r}: expected one of {expected}"
    raise TandemError("bad_setting", message, param="placement.policy")
