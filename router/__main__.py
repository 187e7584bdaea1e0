"""`python -m router`: the router as a process. Settings are flags (`--port 8000`), environment or a file."""

import gc
import logging
import os
import sys
from typing import Final

import uvloop

from kv_transfer.key_file import read_keyring
from kv_transfer.tickets import Keyring, TicketKey
from router.api.auth import Keys, load_keys
from router.api.chat_templates.render import FileRenderer, Renderer, SimpleRenderer
from router.api.chat_templates.supervisor import HelperTemplates
from router.api.chat_templates.templates import Templates
from router.process_settings import ProcessSettings, sized
from router.wiring import Wiring
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.simple_tokenizer import MODEL_NAME
from tandem.model.directory import open_model
from tandem.process.large_pages import use_large_pages
from tandem.process.logs import EventLines, event, set_up_logs
from tandem.process.run import fail, serve_process
from tandem.process.settings import load_settings
from tandem.process.settings_help import help_asked
from tandem.process.system import SystemClock, SystemEntropy
from tandem.process.telemetry import endpoint_from, open_telemetry
from tandem.spec.tenants import read_tenants

_log = logging.getLogger(__name__)

_GC_THRESHOLDS: Final = (20_000, 20, 20)
"""A request leaves some hundred objects that refer to each other. At the interpreter's own thresholds the collector
runs many times for each burst of requests, mostly over what is still in use; these let a few megabytes gather."""


def main() -> int:
    """Run a router to its end; the exit status."""
    if help_asked("router", ProcessSettings, sys.argv[1:]):
        return 0
    events, templates = EventLines(sys.stdout if "--events" in sys.argv else None), HelperTemplates(SystemClock())
    try:
        settings = sized(load_settings(ProcessSettings, _flags(sys.argv[1:]), os.environ))
        set_up_logs(json_lines=settings.log.format == "json", level=settings.log.level)
        events = EventLines(sys.stdout if settings.events else None)
        events.emit("loading", fraction=0.0)
        if not settings.kubernetes and settings.engine != "simulated":
            templates.prepare()
        renderers = {} if settings.kubernetes else dict([open_renderer(settings, templates)])
        keys = load_keys(settings.api_keys) if settings.api_keys is not None else Keys()
        keyring = open_keyring(settings, SystemEntropy())
        tenant_keys = open_tenant_keys(settings)
        wiring = Wiring(settings, renderers, templates, keys, keyring, tenant_keys=tenant_keys)
    except TandemError as error:
        return fail(events, error)
    endpoint = settings.otlp_endpoint if settings.otlp_endpoint is not None else endpoint_from(os.environ)
    telemetry = open_telemetry("router", endpoint, settings.name)
    # One text at a time is tokenized where it is asked for: threads for batches would only hand it to and fro.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # What has been loaded stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    use_large_pages()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        return serve_process(
            lambda lines: wiring.build(telemetry, lines),
            events,
            settings.core.deadlines.drain_s,
            loop_factory=uvloop.new_event_loop,
        )
    finally:
        templates.close()
        telemetry.close()


def open_renderer(settings: ProcessSettings, templates: Templates) -> tuple[str, Renderer]:
    """The served model's name and text side. Blocks while a hub model is downloaded. Raises `bad_model`."""
    if settings.engine == "simulated":
        return settings.model_name or MODEL_NAME, SimpleRenderer(templates.clock)
    directory = open_model(settings.model, name=settings.model_name, cache=settings.cache)
    directory = directory.with_template(settings.chat_template, anywhere=True)
    return directory.name, FileRenderer(directory, templates, settings.parsers, settings.generation_config)


def open_keyring(settings: ProcessSettings, entropy: Entropy) -> Keyring:
    """The ticket keys; without a file one that only this router knows, good for workers that hand nothing over.
    Raises `bad_setting`."""
    if settings.ticket_key_file is not None:
        return read_keyring(settings.ticket_key_file)
    return Keyring(TicketKey("drawn", entropy.token(32)))


def open_tenant_keys(settings: ProcessSettings) -> dict[str, Keyring]:
    """The ticket keys of each tenant by namespace; none without a directory of them. A tenant whose keys cannot be
    read is left out, and the log says why: whoever writes the Secret of one namespace stops no router of others."""
    directory, found = settings.tenant_keys, dict[str, Keyring]()
    if directory is None:
        return found
    for namespace in read_tenants(settings.tenants).patterns:
        try:
            found[namespace] = read_keyring(directory / namespace)
        except TandemError as error:
            event(_log, "tenant_key_unread", level=logging.ERROR, namespace=namespace, reason=error.message)
    return found


def _flags(argv: list[str]) -> list[str]:
    """Names of flags may be written with dashes, and namespaces one by one."""
    flags, namespaces = list[str](), list[str]()
    rest = [_underscored(part) if part.startswith("--") else part for part in argv]
    while rest:
        part = rest.pop(0)
        name, equals, value = part.partition("=")
        if name != "--namespace":
            flags.append(part)
        elif equals or rest:
            namespaces.append(value if equals else rest.pop(0))
    return [*flags, *([f"--namespace={','.join(namespaces)}"] if namespaces else [])]


def _underscored(flag: str) -> str:
    name, equals, value = flag[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


if __name__ == "__main__":
    sys.exit(main())
