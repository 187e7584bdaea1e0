"""The Prometheus meter renders exactly the closed list and refuses anything else."""

import re
import socket
import struct
import threading
import time
import urllib.error
import urllib.request

import pytest

from tandem.core.errors import TandemError
from tandem.core.metrics import METRICS
from tandem.process.metrics import PrometheusMeter


def test_every_metric_is_rendered_from_the_start_and_no_other() -> None:
    text = PrometheusMeter().render().decode()
    rendered = set(re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram)$", text, re.MULTILINE))
    assert {name for name in rendered if not name.endswith("_created")} == set(METRICS)


def test_counters_add_up_by_label() -> None:
    meter = PrometheusMeter()
    meter.add("tandem_requests_total", 1.0, "demo", "ok")
    meter.add("tandem_requests_total", 2.0, "demo", "ok")
    meter.add("tandem_requests_total", 1.0, "demo", "cancelled")
    text = meter.render().decode()
    assert 'tandem_requests_total{model="demo",outcome="ok"} 3.0' in text
    assert 'tandem_requests_total{model="demo",outcome="cancelled"} 1.0' in text


def test_unlabelled_gauge_and_histogram() -> None:
    meter = PrometheusMeter()
    meter.set("tandem_requests_running", 4)
    meter.set("tandem_requests_running", 2)
    meter.observe("tandem_ttft_seconds", 0.03, "demo")
    text = meter.render().decode()
    assert "\ntandem_requests_running 2.0" in text
    assert 'tandem_ttft_seconds_bucket{le="0.02",model="demo"} 0.0' in text
    assert 'tandem_ttft_seconds_bucket{le="0.05",model="demo"} 1.0' in text
    assert 'tandem_ttft_seconds_count{model="demo"} 1.0' in text


@pytest.mark.parametrize(
    "said", [b"", b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"GET /" + b"a" * 70_000]
)
def test_what_is_no_scrape_leaves_no_traceback(said: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    host, _, port = PrometheusMeter().serve("127.0.0.1:0").rpartition(":")
    for reset in (True, False):
        with socket.create_connection((host, int(port)), timeout=100) as client:
            client.sendall(said)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with urllib.request.urlopen(f"http://{host}:{port}/alive", timeout=100) as answer:
        assert answer.status == 200
    deadline = time.monotonic() + 10.0
    while [each for each in threading.enumerate() if "process_request" in each.name] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert capsys.readouterr().err == ""


def test_two_meters_do_not_share_figures() -> None:
    one, other = PrometheusMeter(), PrometheusMeter()
    one.add("tandem_preemptions_total")
    assert "\ntandem_preemptions_total 1.0" in one.render().decode()
    assert "\ntandem_preemptions_total 0.0" in other.render().decode()


def test_unknown_name_wrong_kind_and_wrong_labels_are_programmer_errors() -> None:
    meter = PrometheusMeter()
    with pytest.raises(KeyError):
        meter.add("tandem_surprises_total")
    with pytest.raises(AssertionError, match="is a gauge"):
        meter.add("tandem_requests_running")
    with pytest.raises(AssertionError, match="takes labels"):
        meter.observe("tandem_ttft_seconds", 1.0)


def test_a_scrape_over_http_gets_the_same_page() -> None:
    meter = PrometheusMeter()
    meter.add("tandem_preemptions_total", 3)
    address = meter.serve("127.0.0.1:0")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=100) as answer:
        page = answer.read().decode()
    assert "\ntandem_preemptions_total 3.0" in page


def test_probes_are_answered_on_the_same_port() -> None:
    problems: list[str | None] = ["the service is starting", None]
    address = PrometheusMeter().serve("127.0.0.1:0", lambda: problems[0])
    with urllib.request.urlopen(f"http://{address}/alive", timeout=100) as answer:
        assert answer.read() == b"alive\n"
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        urllib.request.urlopen(f"http://{address}/ready", timeout=100)
    assert refused.value.read() == b"the service is starting\n"
    problems.pop(0)
    with urllib.request.urlopen(f"http://{address}/ready", timeout=100) as answer:
        assert answer.read() == b"ready\n"


def test_a_port_that_cannot_be_had_is_a_bad_setting() -> None:
    with pytest.raises(TandemError, match=r"metrics_bind = '127\.0\.0\.1:x'"):
        PrometheusMeter().serve("127.0.0.1:x")
