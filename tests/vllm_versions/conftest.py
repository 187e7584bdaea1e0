"""What Tandem uses of vLLM, held against a version of it: `make test-vllm-next` runs these tests with the installed
one, then with the Python files of the next. Elsewhere they are not collected.

This process pretends to be one on a card, as vLLM's own wheel can be imported on no other machine; it computes
nothing.
"""

import importlib.util
import os

_HERE = importlib.util.find_spec("vllm") is not None
collect_ignore_glob = [] if _HERE else ["test_*.py"]

if _HERE:
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR")
    from tandem.engine.vllm.dry_run import H100, pretend

    pretend(H100)


def pytest_report_header() -> str:
    """Which version these tests are about."""
    from tandem.engine.vllm.internals import vllm_version

    return f"vLLM {vllm_version()}"
