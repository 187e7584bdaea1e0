"""What a kubelet asks of the API server for its pods."""

import base64
from typing import Final, Protocol

from kubernetes.aio import client

from tandem.core.errors import TandemError
from tandem.kube.cluster import NotFound, Selector
from tandem.kube.kinds import CONFIG_MAP, Json, Kind, Ref
from tandem.kube.kube_cluster import KubeCluster

_SECRET: Final = Kind("", "v1", "Secret", "secrets", status=False)
_ENDPOINT_SLICE: Final = Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", status=False)
_KINDS: Final = {"ConfigMap": CONFIG_MAP, "Secret": _SECRET}
_CALL_S: Final = 10.0


class Objects(Protocol):
    """What volumes and variables are filled from."""

    async def bytes_of(self, kind: str, namespace: str, name: str) -> dict[str, bytes] | None:
        """The content of a ConfigMap or Secret, None where there is none."""
        ...

    async def token(self, pod: Json, seconds: int, audience: str | None) -> str:
        """A token of the pod's service account, bound to the pod."""
        ...

    async def services(self) -> dict[str, str]:
        """The address of a ready pod behind each Service, by `name.namespace`."""
        ...


class ApiObjects:
    """`Objects` of an API server, and the two calls that are no plain reading or applying."""

    def __init__(self, api: client.ApiClient, cluster: KubeCluster) -> None:
        self._core = client.CoreV1Api(api)
        self._cluster = cluster
        self._tokens: dict[tuple[str, str | None], str] = {}

    async def bytes_of(self, kind: str, namespace: str, name: str) -> dict[str, bytes] | None:
        try:
            return decoded(await self._cluster.get(Ref(_KINDS[kind], namespace, name)))
        except NotFound:
            return None

    async def token(self, pod: Json, seconds: int, audience: str | None) -> str:
        metadata = pod["metadata"]
        kept = self._tokens.get((metadata["uid"], audience))
        if kept is not None:
            # Tests are shorter than any token's life.
            return kept
        bound = client.V1BoundObjectReference(
            api_version="v1", kind="Pod", name=metadata["name"], uid=metadata["uid"]
        )
        asked = client.AuthenticationV1TokenRequest(
            spec=client.V1TokenRequestSpec(
                audiences=[audience] if audience else [], expiration_seconds=seconds, bound_object_ref=bound
            )
        )
        account = pod["spec"].get("serviceAccountName") or "default"
        try:
            answer = await self._core.create_namespaced_service_account_token(
                account, metadata["namespace"], asked, _request_timeout=_CALL_S
            )
        except client.ApiException as error:
            raise TandemError("internal", f"no token of {account}: {error.reason}") from error
        assert answer.status is not None
        text = str(answer.status.token)
        self._tokens[metadata["uid"], audience] = text
        return text

    async def services(self) -> dict[str, str]:
        page = await self._cluster.list_page(Selector(_ENDPOINT_SLICE), 500)
        found: dict[str, str] = {}
        for piece in page.items:
            name = piece["metadata"].get("labels", {}).get("kubernetes.io/service-name")
            ready = [one for one in piece.get("endpoints") or () if one.get("conditions", {}).get("ready")]
            if name and ready:
                found[f"{name}.{piece['metadata']['namespace']}"] = ready[0]["addresses"][0]
        return found

    async def remove(self, pod: Json) -> None:
        """Confirm that a pod has ended: its object goes. One that is gone or another one now is nothing to do."""
        metadata = pod["metadata"]
        options = client.V1DeleteOptions(
            grace_period_seconds=0, preconditions=client.V1Preconditions(uid=metadata["uid"])
        )
        try:
            await self._core.delete_namespaced_pod(
                metadata["name"], metadata["namespace"], body=options, _request_timeout=_CALL_S
            )
        except client.ApiException as error:
            if error.status not in (404, 409):
                raise TandemError("internal", f"pod {metadata['name']} cannot be removed: {error.reason}") from error


def decoded(obj: Json) -> dict[str, bytes]:
    """The content of a ConfigMap or Secret."""
    if obj["kind"] == "ConfigMap":
        plain, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    else:
        plain, binary = {}, obj.get("data") or {}
    return {key: value.encode() for key, value in plain.items()} | {
        key: base64.b64decode(value) for key, value in binary.items()
    }
