"""What people see: a table on a terminal, few lines elsewhere, a curl that can be pasted, a command that helps."""

import io
import shlex

import msgspec
import pytest
from rich.console import Console

from tandem.apps.cli.display import LineDisplay, TableDisplay, state_of
from tandem.apps.cli.main import COMMANDS, main
from tandem.apps.cli.member import Member
from tandem.apps.cli.metrics_watch import linked_workers, metrics_line
from tandem.apps.cli.platform import Platform
from tandem.apps.cli.ports import free_port
from tandem.apps.cli.up import adds_to
from tandem.apps.cli.up_options import parse
from tandem.process.processes import Command


def member(name: str, *lines: str) -> Member:
    made = Member(Command(name, [name], {}), "decode")
    for line in lines:
        made.take(line)
    return made


def test_lines_tell_quarters_of_loading_once() -> None:
    said: list[str] = []
    with LineDisplay(said.append) as board:
        worker = member("decode-0")
        for percent in range(101):
            worker.take(f'{{"event": "loading", "fraction": {percent / 100}}}')
            board.changed(worker, "")
        board.changed(worker, "decode-0 is ready")
    assert said == [f"decode-0 is loading, {share} %" for share in (25, 50, 75, 100)] + ["decode-0 is ready"]


def test_the_table_has_every_member_and_says_sentences_unbroken() -> None:
    out = io.StringIO()
    members = [member("decode-0", '{"event": "ready"}'), member("decode-1", '{"event": "loading", "fraction": 0.4}')]
    long = "curl " + "x" * 200
    with TableDisplay(Console(file=out, force_terminal=True, width=80), members, lambda: "running 3") as board:
        board.say(long)
    text = out.getvalue()
    assert long in text
    for part in ("decode-0", "ready", "decode-1", "loading 40%", "running 3"):
        assert part in text


def test_states_in_a_word() -> None:
    assert state_of(member("w")) == "starting"
    assert state_of(member("w", '{"event": "loading", "fraction": 0.5}')) == "loading 50%"
    assert state_of(member("w", '{"event": "ready"}')) == "ready"


def test_figures_are_summed_over_labels() -> None:
    page = (
        'tandem_requests_running 2.0\ntandem_output_tokens_total{model="a"} 1000.0\n'
        'tandem_output_tokens_total{model="b"} 234.0\ntandem_output_tokens_created{model="a"} 9e9\n'
    )
    assert metrics_line(page) == "running 2   tokens out 1,234"
    assert metrics_line("") == ""


def test_only_ready_workers_count_as_linked() -> None:
    page = (
        'tandem_workers{role="prefill",state="ready"} 1.0\ntandem_workers{role="decode",state="ready"} 2.0\n'
        'tandem_workers{role="decode",state="draining"} 4.0\n'
    )
    assert linked_workers(page) == 3
    assert linked_workers("") == 0


def test_the_curl_can_be_pasted() -> None:
    platform = Platform(parse(["--port", str(free_port("127.0.0.1"))]).service, {})
    try:
        words = shlex.split(platform.curl())
    finally:
        platform.directory.remove()
    assert words[:2] == ["curl", "-N"]
    assert words[2] == f"{platform.url}/v1/chat/completions"
    assert msgspec.json.decode(words[-1])["model"] == "demo"


def test_the_command_helps_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in COMMANDS)
    assert main([]) == 2
    assert main(["fly"]) == 2
    assert capsys.readouterr().err.strip() == f"tandem: no command 'fly'; there are {', '.join(COMMANDS)}"
    assert main(["--version"]) == 0


def test_a_log_that_only_repeats_the_message_adds_nothing() -> None:
    event = '{"event": "failed", "code": "bad_model", "message": "no \\"such\\" model"}'
    repeated = f'bad_model: no "such" model\n{event}\n'
    assert not adds_to('no "such" model', repeated)
    assert adds_to('no "such" model', f"Traceback (most recent call last):\n{repeated}")


def test_explaining_nobody_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "r1", "--url", "http://127.0.0.1:1"]) == 1
    assert main(["explain", "../../metrics"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("tandem explain: no answer from 127.0.0.1:1")
    assert "is not a request id" in said[1]
