"""`GET /v1/workers`: who may see which workers, and in which form."""

from pathlib import Path

import msgspec
import pytest

from router.api.auth import Keys, load_keys
from router.api.rest.app import RestApp
from router.fleet.listing import LoadListing, PairListing, WorkerListing
from router.fleet.split_listing import FleetOutlook, SplitOptionListing
from tests.worlds.front_stage import Stage, on_stage

LOAD = LoadListing(3, 1, 2_000, 4, 100, 50, 0.5, 0.1, 0.02, 1_000.0, 50.0, 0.001, 0.0, 0)


def worker(name: str, model: str, role: str = "decode") -> WorkerListing:
    pair = PairListing("p0", "prefill", "open", "tcp", "open after kv_corrupt (…)", 0, False)
    return WorkerListing(
        name,
        "worker",
        role,
        "ready",
        model,
        "r1",
        "00ff",
        "host:1",
        "self",
        ("shm", "tcp"),
        (),
        "",
        (pair,),
        load=LOAD,
        pair_count=1,
    )


WORKERS = (worker("d0", "tiny"), worker("d1", "other"))


def listed(*, pairs: bool) -> tuple[WorkerListing, ...]:
    return WORKERS if pairs else tuple(msgspec.structs.replace(each, pairs=()) for each in WORKERS)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    path = tmp_path / "keys.json"
    path.write_text(
        '{"salt_key": "0123456789abcdef", "keys": {"sk-a": "a", "sk-b": {"tenant": "b", "models": ["tiny"]}, '
        '"sk-op": {"tenant": "op", "operator": true}, '
        '"sk-op-b": {"tenant": "op-b", "models": ["tiny"], "operator": true}}}'
    )
    return load_keys(path)


def with_workers(stage: Stage, keys: Keys | None = None) -> Stage:
    stage.app = RestApp(stage.door, keys or Keys(), stage.meter.render, listed)
    return stage


def test_workers_are_listed_with_their_states_and_pairs() -> None:
    async def test(stage: Stage) -> None:
        answer = await with_workers(stage).get("/v1/workers")
        assert answer.status == 200
        body = answer.json()
        assert body["object"] == "list"
        assert [listed["id"] for listed in body["data"]] == ["d0", "d1"]
        assert body["data"][0] == {
            "id": "d0",
            "object": "worker",
            "role": "decode",
            "state": "ready",
            "model": "tiny",
            "revision": "r1",
            "epoch": "00ff",
            "address": "host:1",
            "canary": "self",
            "transports": ["shm", "tcp"],
            "problems": [],
            "reason": "",
            "pairs": [
                {
                    "worker": "p0",
                    "role": "prefill",
                    "state": "open",
                    "path": "tcp",
                    "reason": "open after kv_corrupt (…)",
                    "failures": 0,
                    "canary": False,
                }
            ],
            "kv_path": "",
            "features": [],
            "adapters": [],
            "service": "",
            "pool": "",
            "load": msgspec.to_builtins(LOAD),
            "ready_for_s": None,
            "takes_prompts": False,
            "pair_count": 1,
        }
        (bare, _) = (await stage.get("/v1/workers?pairs=none")).json()["data"]
        assert (bare["id"], bare["pairs"], bare["pair_count"]) == ("d0", [], 1)

    on_stage(test)


def test_a_key_shows_the_workers_of_the_models_it_may_use(keys: Keys) -> None:
    async def test(stage: Stage) -> None:
        with_workers(stage, keys)
        assert (await stage.get("/v1/workers")).status == 401
        for key, names in (("sk-a", ["d0", "d1"]), ("sk-b", ["d0"])):
            answer = await stage.get("/v1/workers", authorization=f"Bearer {key}")
            assert [listed["id"] for listed in answer.json()["data"]] == names
            assert {listed["address"] for listed in answer.json()["data"]} == {""}
            assert {listed["load"] for listed in answer.json()["data"]} == {None}

    on_stage(test)


def test_operators_see_where_workers_are_and_what_they_are_busy_with(keys: Keys) -> None:
    async def test(stage: Stage) -> None:
        with_workers(stage, keys)
        (first, _) = (await stage.get("/v1/workers", authorization="Bearer sk-op")).json()["data"]
        assert first["address"] == "host:1"
        assert first["load"]["running"] == 3

    on_stage(test)


class Counted(msgspec.Struct, frozen=True):
    models: tuple[str, ...]


def test_revisions_are_told_to_operators_of_the_models_a_key_may_use(keys: Keys) -> None:
    async def test(stage: Stage) -> None:
        stage.app = RestApp(stage.door, keys, stage.meter.render, listed, Counted)
        assert (await stage.get("/v1/revisions")).status == 401
        for key, models in (("sk-op", []), ("sk-op-b", ["tiny"])):
            answer = await stage.get("/v1/revisions", authorization=f"Bearer {key}")
            assert (answer.status, answer.json()) == (200, {"models": models})
        refused = await stage.get("/v1/revisions", authorization="Bearer sk-a")
        assert refused.status == 403
        assert "operator" in refused.json()["error"]["message"]
        assert (await stage.post("/v1/revisions", {})).status == 405

    on_stage(test)


def test_it_can_only_be_read() -> None:
    async def test(stage: Stage) -> None:
        assert (await with_workers(stage).post("/v1/workers", {})).status == 405

    on_stage(test)


def test_splits_are_explained_to_who_may_use_the_model(keys: Keys) -> None:
    outlooks = tuple(
        FleetOutlook(
            f"ns/{model}", model, ("a1",), ("a1", "a2"), 25.0, "as told", 3.0, "router-x", True, 2, None,
            (SplitOptionListing(1, None, 0.9, 100.0, 0.8),), {"ttft_s": 2.0},
        )
        for model in ("other", "tiny")
    )  # fmt: skip

    def shown(models: tuple[str, ...]) -> tuple[FleetOutlook, ...]:
        return tuple(each for each in outlooks if not models or each.model in models)

    async def test(stage: Stage) -> None:
        stage.app = RestApp(stage.door, keys, stage.meter.render, outlooks=shown)
        assert (await stage.get("/v1/explain/fleet")).status == 401
        for key, seen in (("sk-a", ["other", "tiny"]), ("sk-b", ["tiny"])):
            answer = await stage.get("/v1/explain/fleet", authorization=f"Bearer {key}")
            assert [each["model"] for each in answer.json()["data"]] == seen
        assert answer.json()["data"][0] == {
            "service": "ns/tiny",
            "model": "tiny",
            "prefills": ["a1"],
            "workers": ["a1", "a2"],
            "itl_ms": 25.0,
            "why": "as told",
            "since_s": 3.0,
            "decides": "router-x",
            "decides_here": True,
            "moves": 2,
            "forecast_error": None,
            "outlooks": [{"prefills": 1, "itl_ms": None, "attainment": 0.9, "tokens_per_s": 100.0, "carried": 0.8}],
            "objective": {"ttft_s": 2.0},
        }
        assert (await stage.post("/v1/explain/fleet", {})).status == 405

    on_stage(test)


def test_metrics_are_for_operators_where_there_are_keys_and_for_all_on_the_port_for_probes(keys: Keys) -> None:
    async def test(stage: Stage) -> None:
        async def status(key: str) -> int:
            return (await stage.get("/metrics", **({"authorization": f"Bearer {key}"} if key else {}))).status

        assert [await status(key) for key in ("", "sk-who", "sk-a", "sk-op")] == [401, 401, 403, 200]
        assert (await stage.get("/health")).status == 200
        stage.app = stage.app.probes  # type: ignore[assignment]
        for path in ("/metrics", "/health", "/ready"):
            assert (await stage.get(path)).status == 200
        assert (await stage.get("/v1/models")).status == 404
        assert (await stage.post("/metrics", {})).status == 405

    on_stage(test, keys=keys)
