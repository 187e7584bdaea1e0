"""What Prometheus finds of routers and workers on Ray."""

import json
from pathlib import Path

from tandem.apps.cli.registry import MemberEntry
from tandem.apps.ray.discovery_file import FILE, DiscoveryFile


def member(name: str, role: str, metrics: str) -> MemberEntry:
    return MemberEntry(name, role, 1, "ready", "", metrics, 0)


def test_every_process_that_serves_metrics_is_a_target(tmp_path: Path) -> None:
    file = DiscoveryFile(tmp_path)
    file.write(
        [member("w", "decode", "10.0.0.2:41"), member("r", "router", "10.0.0.1:40"), member("s", "decode", "")]
    )
    assert json.loads((tmp_path / FILE).read_text()) == [
        {"labels": {"job": "tandem", "role": "router", "name": "r"}, "targets": ["10.0.0.1:40"]},
        {"labels": {"job": "tandem", "role": "decode", "name": "w"}, "targets": ["10.0.0.2:41"]},
    ]
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_an_unchanged_file_is_left_alone_and_goes_at_the_end(tmp_path: Path) -> None:
    file = DiscoveryFile(tmp_path)
    file.write([member("w", "decode", "10.0.0.2:41")])
    before = file.path.stat().st_ino
    file.write([member("w", "decode", "10.0.0.2:41")])
    assert file.path.stat().st_ino == before
    file.write([])
    assert json.loads(file.path.read_text()) == []
    file.remove()
    file.remove()
    assert not list(tmp_path.iterdir())
