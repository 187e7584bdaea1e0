"""The text sides of services' models: where their files come from, and what is said while they are not there."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from tandem.process.system import SystemClock
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
    asked: list[object] = []

    def download(
        model: str, cache: Path | None, *, weights: bool, token: object = None, endpoint: object = None
    ) -> Path:
        asked.append((token, endpoint))
        return open_model("demo").path

    for module in ("tandem.model.directory", "router.discovery.loading"):
        monkeypatch.setattr(f"{module}.download", download)
    templates = InlineTemplates(LoopClock(VirtualLoop()))
    source = TextSource("a/s", Model("hf://org/model"), False, True)
    both = {"HF_TOKEN": "hf_a", "HF_ENDPOINT": "https://hub.example.com\n"}
    for environment in (None, {}, {"HF_TOKEN": "hf_a\n"}, both):
        load_text_side("a/m", source, None, tmp_path, templates, environment)
    assert asked == [(None, None), (False, None), ("hf_a", None), ("hf_a", "https://hub.example.com")]


def test_a_hub_is_asked_where_the_tenants_token_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The router's own endpoint gets no request, and so no token of another hub."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    seen: list[tuple[str, str | None]] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("Authorization")))
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {"HF_TOKEN": "hf_a", "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
        source = TextSource("a/s", Model("org/model"), False, True)
        with pytest.raises(TandemError, match="org/model: "):
            load_text_side("a/m", source, None, tmp_path, InlineTemplates(SystemClock()), environment)
        server.shutdown()
    assert seen
    assert {authorization for _, authorization in seen} == {"Bearer hf_a"}


@pytest.mark.parametrize("given", ["credentials", "names"])
def test_a_tenant_reads_no_directory_of_the_routers(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither another's text cache nor what merely looks like the id of a model, however it is written."""
    demo = open_model("demo").path
    for name in ("cache/b/theirs", "org/model", "texts/a/chat"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(demo)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    told: list[str] = []

    def download(model: str, *_: object, **__: object) -> Path:
        told.append(model)
        return demo

    monkeypatch.setattr("router.discovery.loading.download", download)
    flags = {"credentials": "--tenant_credentials=given", "names": "--tenants=a=*"}
    settings = load_settings(
        ProcessSettings, ["--kubernetes", flags[given], "--cache=cache", "--text_files=texts"], {}
    )
    load = text_loader(settings, InlineTemplates(SystemClock()))
    theirs = tmp_path / "cache" / "b" / "theirs"
    wrong = [
        *(f"{scheme}{theirs}" for scheme in ("", "file://")),
        *("cache/b/theirs", "./org/model", "~/org/model", "file://~/org/model", "texts/../org/model"),
        *("org/model@../../x", "org/model@/x", str(tmp_path / "absent")),
    ]
    for where in wrong:
        with pytest.raises(TandemError, match="routers read no directories for tenants"):
            load("m", TextSource("a/s", Model(where), False, True))
    for revision in ("../../x", "/x"):
        with pytest.raises(TandemError, match="routers read no directories for tenants"):
            load("m", TextSource("a/s", Model("org/model", revision=revision), False, True))
    assert told == []
    load("m", TextSource("a/s", Model("org/model"), False, True))
    assert told == ["org/model"], "a hub's, although a directory here is called that"
    load("m", TextSource("a/chat", Model(str(theirs)), False, True))
    load("m", TextSource("a/s", Model("demo"), False, True))
    assert told == ["org/model"]


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
