"""Settings: file, environment and flags, and errors that name key and value."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from router.process_settings import ProcessSettings
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.process.settings import field_keys, load_settings
from tandem.process.settings_help import help_asked, help_text


@dataclass(frozen=True)
class Inner:
    bind: str = "127.0.0.1:0"
    names: tuple[str, ...] = ()
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise TandemError("bad_setting", f"share = {self.share}: expected 0 to 1", param="share")


@dataclass(frozen=True)
class Outer:
    name: str
    count: int = 1
    path: Path | None = None
    verbose: bool = False
    inner: Inner = field(default_factory=Inner)
    deadlines: Deadlines = field(default_factory=Deadlines)
    limit: int | None = None


def refused(argv: list[str], environ: dict[str, str] | None = None) -> TandemError:
    with pytest.raises(TandemError) as caught:
        load_settings(Outer, argv, environ or {})
    assert caught.value.code == "bad_setting"
    return caught.value


def test_defaults_need_only_what_has_none() -> None:
    assert load_settings(Outer, ["--name", "a"]) == Outer("a")


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("name: file\ncount: 2\ninner:\n  bind: file:1\n  names: [x, y]\ndeadlines:\n  queue_s: 3\n")
    environ = {"TANDEM_COUNT": "3", "TANDEM_INNER__BIND": "env:1", "TANDEM_OTHER_PROGRAM": "x", "PATH": "/"}
    got = load_settings(Outer, ["--config", str(config), "--inner.bind=flag:1", "--verbose"], environ)
    assert got.name == "file"
    assert got.count == 3
    assert got.inner == Inner("flag:1", ("x", "y"))
    assert got.verbose is True
    assert got.deadlines == Deadlines(queue_s=3.0)


def test_json_files_are_read_too(tmp_path: Path) -> None:
    config = tmp_path / "settings.json"
    config.write_text('{"name": "j", "inner": {"share": 1}}')
    assert load_settings(Outer, ["--config", str(config)]).inner.share == 1.0


def test_text_becomes_the_type_of_the_field() -> None:
    argv = ["--name", "n", "--path", "a/b", "--inner.names", "shm, tcp", "--limit", "7", "--inner.share", "0.25"]
    got = load_settings(Outer, argv)
    assert got.path == Path("a/b")
    assert got.inner.names == ("shm", "tcp")
    assert got.limit == 7
    assert got.inner.share == 0.25


def test_dashes_in_flags_count_as_underscores() -> None:
    assert load_settings(Outer, ["--name=n", "--deadlines.queue-s", "4"]).deadlines.queue_s == 4.0


@pytest.mark.parametrize(
    ("argv", "key", "value"),
    [
        (["--name", "n", "--count", "many"], "count", "many"),
        (["--name", "n", "--inner.shar", "1"], "inner.shar", "1"),
        (["--name", "n", "--inner.share", "1.5"], "inner.share", "1.5"),
        (["--name", "n", "--inner.bind.deep", "1"], "inner.bind", "deep"),
        (["--name", "n", "--colour", "red"], "colour", "red"),
        (["--name", "n", "stray"], "stray", "stray"),
        (["--name", "n", "--verbose", "perhaps"], "verbose", "perhaps"),
        (["--count", "1"], "name", "name"),
        (["--name", "n", "--config", "/does/not/exist.yaml"], "config", "/does/not/exist.yaml"),
    ],
)
def test_errors_name_key_and_value(argv: list[str], key: str, value: str) -> None:
    error = refused(argv)
    assert error.param == key
    assert value in error.message
    assert key.rpartition(".")[2] in error.message


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", "just text"])
def test_a_file_that_is_no_mapping_is_refused(text: str, tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text(text)
    assert str(config) in refused(["--config", str(config)]).message


def test_bad_environment_is_refused_by_key() -> None:
    assert refused(["--name", "n"], {"TANDEM_INNER__SHARE": "lots"}).param == "inner.share"


def test_every_key_is_listed() -> None:
    keys = field_keys(Outer)
    assert {"name", "inner.bind", "deadlines.queue_s"} <= keys.keys()
    assert "inner" not in keys


def test_help_names_every_setting_with_its_default() -> None:
    text = help_text("router", ProcessSettings)
    for key in field_keys(ProcessSettings):
        assert f"--{key} " in text, key
    assert "default 8000" in text
    assert not help_asked("router", ProcessSettings, ["--port", "1"])
