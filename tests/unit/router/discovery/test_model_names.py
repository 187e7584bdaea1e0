"""The names that clients may ask for a model by, and the chat template that a service gives it."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.__main__ import open_renderer
from router.api.auth import Caller, Keys
from router.api.chat_templates.templates import InlineTemplates
from router.api.model_names import ModelNames, by_name, revision_asked
from router.discovery.loading import load_text_side
from router.discovery.model_service import TextSource, by_model, facts_of, service_of
from router.fleet.services import ServiceFacts, ServiceRegistry
from router.generation import ServedModel
from router.process_settings import ProcessSettings
from tandem.apps.cli.launches import LaunchContext, members_of
from tandem.apps.cli.rolling.rollout import unchangeable
from tandem.apps.simulation.loop import LoopClock, VirtualLoop
from tandem.core.errors import TandemError
from tandem.kube.kinds import Json
from tandem.model.directory import open_model
from tandem.process.settings import load_settings
from tandem.process.workers_file import ServiceEntry
from tandem.spec.model import Model
from tandem.spec.reading import service_of as spec_of
from tests.worlds.front_stage import CONTEXT, MODEL, Script, Stage, on_stage
from tests.worlds.rendered import rendered

SHOUT = "{% for message in messages %}SHOUT {{ message.content }}{% endfor %}"
ALIASED = ServedModel(MODEL, CONTEXT, (0,), revisions=("r1",), aliases=("gpt", "llama"))


@dataclass
class Aliased(Script):
    """Serves one model under three names."""

    listed: tuple[ServedModel, ...] = field(default=(ALIASED, ServedModel("lora", CONTEXT, (0,), MODEL)))

    def models(self) -> tuple[ServedModel, ...]:
        return self.listed


def test_an_alias_is_listed_shown_and_asked_like_its_model() -> None:
    script = Aliased()

    async def test(stage: Stage) -> None:
        listed = (await stage.get("/v1/models")).json()["data"]
        assert [(each["id"], each.get("root")) for each in listed] == [
            (MODEL, None),
            ("lora", None),
            ("gpt", MODEL),
            ("llama", MODEL),
        ]
        assert (await stage.get("/v1/models/gpt")).json()["root"] == MODEL
        assert (await stage.get("/v1/models/claude")).error["code"] == "model_not_found"
        answer = await stage.chat(model="gpt")
        assert (answer.status, answer.json()["model"]) == (200, "gpt")
        assert (await stage.chat(model="llama@r1")).status == 200
        assert (await stage.chat(model="gpt@r2")).error["code"] == "model_not_found"
        asked = [(each.generation.model, each.generation.revision) for each in script.started]
        assert asked == [(MODEL, ""), (MODEL, "r1")]

    on_stage(test, script)


def test_a_key_is_for_a_model_under_all_of_its_names() -> None:
    async def test(stage: Stage) -> None:
        for key, status in (("mine", 200), ("other", 403)):
            bearer = {"authorization": f"Bearer {key}"}
            body = msgspec.json.encode({"model": "gpt", "prompt": "hi"})
            assert (await stage.post("/v1/completions", body, **bearer)).status == status
            assert (await stage.get("/v1/models/gpt", **bearer)).status == status
        listed = (await stage.get("/v1/models", authorization="Bearer mine")).json()["data"]
        assert [each["id"] for each in listed] == [MODEL, "gpt", "llama"]

    mine, other = Caller("a", "s", (MODEL,)), Caller("b", "t", ("gpt",))
    on_stage(test, Aliased(), keys=Keys({_digest("mine"): mine, _digest("other"): other}))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


NAMES = st.sampled_from(["a", "b", "c", "a@r1", "d"])


@given(st.lists(st.builds(lambda name, more: ServedModel(name, 1, (), aliases=tuple(more)), NAMES, st.lists(NAMES))))
def test_every_name_means_one_model_and_its_own_name_goes_first(models: list[ServedModel]) -> None:
    listed = tuple(models)
    named = by_name(listed)
    assert set(named) == {name for model in listed for name in (model.name, *model.aliases)}
    asked = ModelNames()
    for name, model in named.items():
        assert asked.find(listed, name) is model
        assert revision_asked(name, model) == ""
        own = [each for each in listed if each.name == name]
        assert model is own[0] if own else name in model.aliases
    assert asked.find((), "a") is None


def test_of_two_services_with_one_name_the_model_and_then_the_oldest_has_it() -> None:
    def service(name: str, since: str, *aliases: str) -> Json:
        return {
            "metadata": {"name": name, "namespace": "n", "creationTimestamp": since},
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "ModelService",
            "spec": {"model": {"aliases": list(aliases)}, "pools": [{"name": "d", "role": "decode"}]},
        }

    objects = [service("new", "2026-02-01", "gpt", "old", "new"), service("old", "2026-01-01", "gpt", "chat")]
    named, problems = by_model(service_of(each) for each in objects)
    assert {model: each.facts.aliases for model, each in named.items()} == {"old": ("gpt", "chat"), "new": ()}
    assert [each.sentence for each in problems] == [
        "n/new is not served as 'gpt': n/old has that name already",
        "n/new is not served as 'old': n/old has that name already",
    ]


def test_a_sleeping_service_keeps_its_aliases_and_an_alias_does_not_read_its_files_anew() -> None:
    services = ServiceRegistry()
    services.tell([ServiceFacts("n/chat", "chat", aliases=("gpt",))], ())
    services.renew(())
    assert [(each.name, each.aliases) for each in services.served] == [("chat", ("gpt",))]
    one, other = (TextSource("n/s", Model("demo", aliases=names), False, True) for names in ((), ("gpt",)))
    assert one.place == other.place
    assert facts_of(ServiceEntry("local/chat", "chat", aliases=("gpt",))).aliases == ("gpt",)


# -- chat templates --


def text_of(model: Model, files: Path | None = None) -> str:
    templates = InlineTemplates(LoopClock(VirtualLoop()))
    renderer = load_text_side("m", TextSource("n/s", model, False, True), files, None, templates).renderer
    return rendered(renderer, [{"role": "user", "content": "hi"}])


def test_a_router_takes_a_template_from_among_the_models_files_alone(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    for file in open_model("demo").path.iterdir():
        (source / file.name).symlink_to(file)
    (source / "shout.jinja").write_text(SHOUT)
    assert text_of(Model(str(source))) != "SHOUT hi"
    assert text_of(Model(str(source), chat_template="shout.jinja")) == "SHOUT hi"
    secret = tmp_path / "secret"
    secret.write_text("an API key")
    for name in (str(secret), "../secret", "gone.jinja"):
        with pytest.raises(TandemError, match=f"has no file '{name}', which chat_template names"):
            text_of(Model(str(source), chat_template=name))
    (source / "large.jinja").write_bytes(b" " * (5 << 20))
    with pytest.raises(TandemError, match="are no chat template"):
        text_of(Model(str(source), chat_template="large.jinja"))


def test_parsers_of_the_specification_are_those_of_the_router() -> None:
    templates = InlineTemplates(LoopClock(VirtualLoop()))
    model = Model("demo", tool_parser="hermes", reasoning_parser="think")
    dialect = load_text_side("m", TextSource("n/s", model, False, True), None, None, templates).renderer.dialect
    assert (dialect.tools, dialect.reasoning) == ("hermes", True)
    silent = msgspec.structs.replace(model, tool_parser="none", reasoning_parser="none")
    dialect = load_text_side("m", TextSource("n/s", silent, False, True), None, None, templates).renderer.dialect
    assert (dialect.tools, dialect.reasoning) == ("none", False)


def test_on_one_machine_any_file_is_a_template_and_an_edited_alias_needs_no_restart(tmp_path: Path) -> None:
    path = tmp_path / "shout.jinja"
    path.write_text(SHOUT)

    def service(**model: Any) -> Any:
        spec = {"model": {"source": "demo", **model}, "pools": [{"name": "d", "role": "decode"}]}
        return spec_of(
            {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": {"name": "s"}, "spec": spec}
        )

    places = LaunchContext(Path("/run/fleet.json"), Path("/run/key"), Path("/run/s"), 9000, None)
    router = members_of(service(chatTemplate=str(path)), places, 2, {})[0]
    settings = load_settings(ProcessSettings, list(router.command.argv[4:]), {})
    _, renderer = open_renderer(settings, InlineTemplates(LoopClock(VirtualLoop())))
    assert rendered(renderer, [{"role": "user", "content": "hi"}]) == "SHOUT hi"
    assert unchangeable(service(), service(aliases=["gpt"])) is None
    assert "spec.model" in str(unchangeable(service(), service(chatTemplate="x.jinja")))
