"""The text sides of services' models: where their files come from, and what is said while they are not there."""

import asyncio
from pathlib import Path

import pytest

from router.api.chat_templates.render import SimpleRenderer
from router.api.chat_templates.templates import InlineTemplates
from router.discovery.loading import load_text_side
from router.discovery.model_service import TextSource
from router.discovery.texts import TextSide, TextSides
from router.process_settings import ProcessSettings
from router.wiring import text_loader
from tandem.apps.simulation.loop import LoopClock, VirtualLoop
from tandem.core.errors import TandemError
from tandem.model.directory import open_model
from tandem.process.settings import load_settings
from tandem.spec.model import Model
from tests.worlds.rendered import rendered
from tests.worlds.weights_stage import ACCESS_KEY, SECRET_KEY, Store, serving


def test_files_of_a_model_come_from_the_service_or_from_where_they_were_put(tmp_path: Path) -> None:
    templates = InlineTemplates(LoopClock(VirtualLoop()))
    simulated = TextSource("n/s", Model(), True, True, preset="llama-3.1-8b-h100")
    with pytest.raises(TandemError, match="there is no preset"):
        load_text_side("m", simulated, None, None, templates)
    demo = load_text_side(
        "m", TextSource("n/s", Model("demo"), False, True, context_tokens=99), None, None, templates
    )
    assert demo.context_tokens == 99
    claimed = TextSource("n/s", Model("pvc://claim/path"), False, True)
    with pytest.raises(TandemError, match=r"n/s: this router cannot read pvc://claim/path; put its tokenizer"):
        load_text_side("m", claimed, tmp_path, None, templates)
    here = tmp_path / "n"
    here.mkdir()
    (here / "s").symlink_to(Path(__file__).parents[4] / "tandem" / "models" / "demo")
    assert load_text_side("m", claimed, tmp_path, None, templates).renderer.vocab_size == demo.renderer.vocab_size


def test_what_lies_in_a_bucket_is_fetched_with_the_routers_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates, demo = InlineTemplates(LoopClock(VirtualLoop())), open_model("demo").path
    files = {path.name: path.read_bytes() for path in demo.iterdir() if path.is_file()}
    source = TextSource("n/s", Model("s3://bucket/demo", chat_template="shout.jinja"), False, True)
    with serving(Store({**files, "shout.jinja": b"SHOUT"})) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "wrong")
        with pytest.raises(TandemError, match=r"access is refused .* router\.cache\.credentialsSecret"):
            load_text_side("m", source, None, tmp_path, templates)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        side = load_text_side("m", source, None, tmp_path, templates)
        assert store.weights_served == 0
    own = load_text_side("m", TextSource("n/s", Model("demo"), False, True), None, None, templates)
    assert side.renderer.text("Hello") == own.renderer.text("Hello")
    assert rendered(side.renderer, [{"role": "user", "content": "hi"}]) == "SHOUT"


def test_credentials_of_a_tenant_are_for_its_models_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the other tenant nor the router's own environment is of any use, nor what was fetched before."""
    demo = open_model("demo").path
    given, cache = tmp_path / "given", tmp_path / "cache"
    with serving(Store({path.name: path.read_bytes() for path in demo.iterdir() if path.is_file()})) as store:
        right = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        for name, value in right.items():
            monkeypatch.setenv(name, value)
        for namespace, credentials in (("a", right), ("b", dict.fromkeys(right, "wrong"))):
            (given / namespace / "..data").mkdir(parents=True)
            for name, value in {**credentials, "AWS_ENDPOINT_URL": store.url}.items():
                (given / namespace / name).write_text(value)
        settings = load_settings(
            ProcessSettings, ["--kubernetes", f"--tenant_credentials={given}", f"--cache={cache}"], {}
        )
        load = text_loader(settings, InlineTemplates(LoopClock(VirtualLoop())))
        source = {name: TextSource(f"{name}/s", Model("s3://bucket/demo"), False, True) for name in ("a", "b", "c")}
        assert load("a/m", source["a"]).renderer.text("Hello")
        with pytest.raises(TandemError, match="access is refused"):
            load("b/m", source["b"])
        with pytest.raises(TandemError):
            load("c/m", source["c"])


def test_a_tenant_without_a_token_asks_the_hub_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[object] = []

    def download(model: str, cache: Path | None, *, weights: bool, token: object = None) -> Path:
        tokens.append(token)
        return open_model("demo").path

    for module in ("tandem.model.directory", "router.discovery.loading"):
        monkeypatch.setattr(f"{module}.download", download)
    templates = InlineTemplates(LoopClock(VirtualLoop()))
    source = TextSource("a/s", Model("hf://org/model"), False, True)
    for environment in (None, {}, {"HF_TOKEN": "hf_a\n"}):
        load_text_side("a/m", source, None, tmp_path, templates, environment)
    assert tokens == [None, False, "hf_a"]


def test_a_directory_that_routers_do_not_have_is_said_with_the_flag() -> None:
    templates = InlineTemplates(LoopClock(VirtualLoop()))
    for where in ("pvc://claim/m", "file:///of/nodes"):
        source = TextSource("n/s", Model(where), False, True)
        with pytest.raises(TandemError, match="--text_files=DIRECTORY, as NAMESPACE/NAME/"):
            load_text_side("m", source, None, None, templates)


async def test_a_text_side_that_cannot_be_read_is_said_and_tried_again() -> None:
    clock = LoopClock(asyncio.get_running_loop())
    tries = 0

    def load(model: str, source: TextSource) -> TextSide:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise TandemError("bad_model", "no tokenizer")
        if tries == 2:
            raise OSError("a disk")
        return TextSide(SimpleRenderer(clock), None)

    texts = TextSides(load, clock)
    task = asyncio.create_task(texts.run())
    for number, problem in enumerate(("no tokenizer", "text side of m: OSError: a disk", None)):
        texts.want({"m": TextSource("n/s", Model(f"demo{number}"), False, True)})
        async with asyncio.timeout(60.0):
            while texts.coming().get("m") != problem:  # noqa: ASYNC110  (a thread tells nobody)
                await asyncio.sleep(0.005)
    assert list(texts) == ["m"]
    task.cancel()
