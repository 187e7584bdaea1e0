"""Paths of objects in the API, and the meaning of the API's answers. Pure."""

from urllib.parse import quote, urlencode

from tandem.core.errors import TandemError
from tandem.kube.cluster import Conflict, Expired, NotFound, Selector, WatchEvent
from tandem.kube.kinds import Json, Kind, Ref

_CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "not_allowed",
    413: "body_too_large",
    422: "invalid_request",
}


def collection_path(kind: Kind, namespace: str | None) -> str:
    """The path of all objects of a kind, in one namespace or (None) in all."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{within}/{kind.plural}"


def object_path(ref: Ref, part: str = "") -> str:
    """The path of one object or of its subresource `part`."""
    path = f"{collection_path(ref.kind, ref.namespace)}/{quote(ref.name, safe='')}"
    return f"{path}/{part}" if part else path


def query(parameters: dict[str, str | int | None]) -> str:
    """The parameters that are set, as they follow a path."""
    given = {key: str(value) for key, value in parameters.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


def list_query(selector: Selector, limit: int, token: str | None) -> str:
    """The query of one page."""
    return query({"limit": limit, "continue": token, "labelSelector": selector.labels})


def watch_query(selector: Selector, version: str, seconds: int) -> str:
    """The query of a watch that the server ends after so many seconds."""
    asked: dict[str, str | int | None] = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": seconds,
        "labelSelector": selector.labels,
    }
    return query(asked)


def refusal(status: int, body: Json | None, what: str, retry_after_s: float | None = None) -> TandemError:
    """The error that corresponds to an answer with an HTTP status of 400 or more; `what` describes the request."""
    said = (body or {}).get("message") or f"HTTP {status}"
    message = f"{what}: {said}"
    if status == 404:
        return NotFound(message)
    if status == 409:
        return Conflict(message)
    if status == 410:
        return Expired(message)
    if status == 429:
        return TandemError("over_quota", message, retry_after_s=retry_after_s)
    if status in _CODES:
        return TandemError(_CODES[status], message)
    return TandemError("internal", message, retry_after_s=retry_after_s)


def watch_event(line: Json, what: str) -> WatchEvent:
    """One line of a watch. Raises what an ERROR line means."""
    kind, obj = line["type"], line["object"]
    if kind == "ERROR":
        raise refusal(int(obj.get("code", 500)), obj, what)
    names = {"ADDED": "added", "MODIFIED": "modified", "DELETED": "deleted", "BOOKMARK": "bookmark"}
    if kind not in names:
        raise TandemError("protocol_mismatch", f"{what}: unknown kind of event {kind!r}")
    return WatchEvent(names[kind], obj)  # type: ignore[arg-type]
