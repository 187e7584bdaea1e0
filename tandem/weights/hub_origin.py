"""A repository of a model hub."""

from collections.abc import Iterator
from contextlib import contextmanager

from tandem.core.errors import TandemError
from tandem.weights.listing import File
from tandem.weights.origin import Stream
from tandem.weights.web import Web


class HubOrigin:
    """`tandem.weights.origin.Origin` of `owner/name` at a branch, tag or commit. The hub knows the SHA-256 of large
    files; endpoint and token are those of `huggingface_hub` (`HF_ENDPOINT`, `HF_TOKEN`)."""

    def __init__(self, repository: str, revision: str) -> None:
        # Imported on use: it costs a tenth of a second, and most starts do not need the hub.
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        self._repository = repository
        self._revision = revision or "main"
        self._web = Web(build_hf_headers())

    def files(self) -> tuple[File, ...]:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        try:
            info = HfApi().model_info(self._repository, revision=self._revision, files_metadata=True, timeout=30.0)
        except HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            code = "link_lost" if status >= 500 or not status else "bad_model"
            raise TandemError(code, f"hub repository {self._repository}@{self._revision}: status {status}") from error
        except OSError as error:
            raise TandemError("link_lost", f"hub repository {self._repository}: {error}") from error
        # From here on one commit, so that all files belong together.
        self._revision = info.sha or self._revision
        return tuple(
            File(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs is not None else "")
            for each in info.siblings or ()
        )

    @contextmanager
    def open(self, name: str, offset: int, tag: str) -> Iterator[Stream]:
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self._repository, name, revision=self._revision)
        with self._web.stream(f"{name} of {self._repository}", url, offset, tag) as stream:
            yield stream

    def close(self) -> None:
        self._web.close()
