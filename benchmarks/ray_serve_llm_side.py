"""One Ray node on loopback, for `benchmarks.ray_serve_llm`, in whatever environment has Ray: alone, or with the
prefill and decode app of Ray Serve LLM. Prints `READY address`, and ends with its standard input. Needs no Tandem."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

MODEL_ID = "model"
KV_BLOCKS = 1024
_CPUS = 16
_STORE_BYTES = 80 << 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_serve_llm_side", description=__doc__)
    parser.add_argument("folder", type=Path, help="for all files of Ray; short, as sockets are in it")
    parser.add_argument("--app", metavar="MODEL", help="serve this model by Ray Serve LLM")
    parser.add_argument("--port", type=int, default=0, help="of Serve's ingress")
    parser.add_argument("--decode", type=int, default=1, help="decode replicas (default %(default)s)")
    given = parser.parse_args()
    os.environ.update({"RAY_TMPDIR": str(given.folder), "TMPDIR": str(given.folder)})
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": _CPUS, "node_ip_address": "127.0.0.1", "object_store_memory": _STORE_BYTES}
    more = {"include_dashboard": False, "temp_dir": str(given.folder / "ray")}
    cluster = Cluster(initialize_head=True, head_node_args={**head, **more})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    if given.app:
        _serve(given.app, given.port, given.decode)
    sys.stdout.write(f"READY {cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    ray.shutdown()
    cluster.shutdown()
    return 0


def _serve(model: str, port: int, decode: int) -> None:
    """Returns when the app answers."""
    from ray import serve
    from ray.serve.llm import build_pd_openai_app

    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    configs = {"prefill_config": _config(model, "producer", 1), "decode_config": _config(model, "consumer", decode)}
    serve.run(build_pd_openai_app(configs), name="llm")


def _config(model: str, role: str, replicas: int) -> Any:
    """The same engine as Tandem's and that of vLLM's servers. KV goes by NIXL from CPU memory to CPU memory."""
    return {
        "model_loading_config": {"model_id": MODEL_ID, "model_source": model},
        "accelerator_config": {"kind": "cpu"},
        "deployment_config": {"autoscaling_config": {"min_replicas": replicas, "max_replicas": replicas}},
        "engine_kwargs": {
            "dtype": "float32",
            "block_size": 32,
            "enforce_eager": True,
            "max_model_len": 1024,
            "num_gpu_blocks_override": KV_BLOCKS,
            "generation_config": "vllm",
            "kv_transfer_config": {
                "kv_connector": "NixlConnector",
                "kv_role": f"kv_{role}",
                "kv_buffer_device": "cpu",
            },
        },
    }


if __name__ == "__main__":
    sys.exit(main())
