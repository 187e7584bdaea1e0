"""What tiers are told and cannot work with is refused at the start, by the name that the operator wrote."""

from pathlib import Path
from typing import Any

import pytest

from kv_transfer.tiers.settings import TierSettings
from tandem.core.errors import TandemError

DISK: dict[str, Any] = {"nvme_dir": Path("/nowhere"), "segment_bytes": 100}
SIZES = ("dram_bytes", "nvme_bytes")
COUNTS = ("segment_bytes", "offers_max", "copy_threads", "read_threads", "write_threads", "batch_bytes")
SECONDS = ("stall_s", "retry_s", "retry_max_s")
SHARES = ("clean_share", "tenant_share", "pin_share")


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        *((name, (-1,), (0,)) for name in SIZES),
        *((name, (0, -1), (1,)) for name in COUNTS),
        *((name, (0.0, -1.0), (0.001,)) for name in SECONDS),
        *((name, (0.0, -0.1, 1.001), (0.001, 1.0)) for name in SHARES),
        ("nvme_bytes", (1, 399), (400, 401)),
    ],
)
def test_a_value_that_no_tier_can_work_with_is_refused_by_its_name(
    name: str, bad: tuple[float, ...], good: tuple[float, ...]
) -> None:
    for value in bad:
        with pytest.raises(TandemError) as refused:
            TierSettings(**{**DISK, name: value})
        assert (refused.value.code, refused.value.param) == ("bad_setting", name)
        assert repr(value) in str(refused.value)
    for value in good:
        assert getattr(TierSettings(**{**DISK, name: value}), name) == value


def test_blocks_on_a_disk_need_a_directory() -> None:
    with pytest.raises(TandemError) as refused:
        TierSettings(nvme_bytes=1 << 40)
    assert refused.value.param == "nvme_dir"


def test_there_is_a_tier_where_any_has_bytes() -> None:
    found = [TierSettings(**{**DISK, **each}).wanted for each in ({}, {"dram_bytes": 1}, {"nvme_bytes": 400})]
    assert found == [False, True, True]
