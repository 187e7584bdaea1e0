"""These tests need vLLM, which has an environment of its own (`make test-vllm`): elsewhere they are not collected."""

import importlib.util
import os

_HERE = importlib.util.find_spec("vllm") is not None
collect_ignore_glob = [] if _HERE else ["test_*.py"]

if _HERE:  # Nothing reaches beyond this machine then, and every engine keeps to one core.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", OMP_NUM_THREADS="1")
