"""Which model is served, and under which names."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from tandem.spec.text import SET, Digest, Line, ModelName, Name, Source, Strict

FETCHED: Final = ("s3://", "gs://", "az://", "abfs://", "abfss://", "oci://")
"""How the sources begin that are fetched to a node before anything can read them."""


class Model(Strict, frozen=True):
    """Which model is served, and under which names."""

    source: Source = "demo"
    """`demo`, a directory or `file://DIRECTORY`, a hub id or `hf://ORG/NAME`, `pvc://CLAIM/PATH`,
    `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`,
    `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`, or `oci://REGISTRY/REPOSITORY:TAG`."""
    name: ModelName | None = None
    """What clients ask for; by default the service's name. It cannot be changed later."""
    tool_parser: Literal["auto", "none", "hermes", "llama3_json", "mistral"] = "auto"
    """How the model writes tool calls; `auto` looks at its chat template."""
    reasoning_parser: Literal["auto", "none", "think"] = "auto"
    """How the model writes its reasoning; `auto` looks at its chat template."""
    generation_config: Literal["auto", "vllm"] = "auto"
    """What requests that leave out temperature, top_p, top_k, min_p, penalties or max_tokens are given: `auto` what
    the model's generation_config.json says, `vllm` vLLM's neutral values."""
    aliases: Annotated[tuple[ModelName, ...], Meta(max_length=16, extra_json_schema=SET)] = ()
    """Other names that clients may ask for."""
    revision: Line | None = None
    """Branch, tag or commit of a hub's repository."""
    digest: Digest | None = None
    """Of the manifest of the weights: what does not match is not loaded."""
    credentials_secret: Name | None = None
    """Secret whose keys are the credentials of the source, as environment variables."""
    chat_template: Line | None = None
    """File among the model's, such as `tools.jinja`, whose template replaces its own; on one machine any file."""
