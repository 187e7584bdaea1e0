"""What `tandem up --on ray` does when it ends."""

import pytest

from tandem.apps.ray.command import takes_away


@pytest.mark.parametrize(
    ("wanted", "found", "failed", "keep", "takes"),
    [
        (True, False, False, False, True),
        (True, True, False, False, True),
        (True, False, True, False, True),
        (True, True, True, False, False),
        (False, True, True, False, False),
        (False, True, False, False, False),
        (False, False, False, False, False),
        (True, False, False, True, False),
    ],
)
def test_a_service_that_the_command_has_not_asked_for_or_whose_take_over_failed_stays(
    wanted: bool, found: bool, failed: bool, keep: bool, takes: bool
) -> None:
    assert takes_away(wanted, found, failed=failed, keep=keep) is takes
