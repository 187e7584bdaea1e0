"""What the `template` of a pool may say: the author of a ModelService shapes its pods, and takes no rights by it.

The API server cannot look into a template. An allow-list does: what it does not name is refused with its path and
what to do. The installation allows Secrets, volumes, capabilities and service accounts by name, and root. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from control_plane.objects.installation import Installation
from tandem.spec.pool import Pool
from tandem.spec.service import ModelService


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TEMPLATE: Final = frozenset({"metadata", "spec"})
_METADATA: Final = frozenset({"labels", "annotations"})
_SPEC: Final = _names(
    "affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks hostAliases hostIPC "
    "hostNetwork hostPID hostUsers imagePullSecrets initContainers nodeSelector preemptionPolicy priorityClassName "
    "resourceClaims resources runtimeClassName schedulerName schedulingGates securityContext serviceAccountName "
    "shareProcessNamespace terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes"
)
_CONTAINER: Final = _names(
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resources "
    "restartPolicy securityContext startupProbe terminationMessagePath terminationMessagePolicy volumeDevices "
    "volumeMounts workingDir"
)
_SECURITY: Final = _names(
    "allowPrivilegeEscalation appArmorProfile capabilities fsGroup fsGroupChangePolicy privileged "
    "readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser seLinuxOptions seccompProfile supplementalGroups "
    "supplementalGroupsPolicy"
)
_VOLUMES: Final = _names("configMap downwardAPI emptyDir ephemeral image persistentVolumeClaim projected secret")
_PROJECTED: Final = frozenset({"clusterTrustBundle", "configMap", "downwardAPI", "secret"})
_FALSE: Final = frozenset({"automountServiceAccountToken", "hostIPC", "hostNetwork", "hostPID", "privileged"})
"""What may only be said to be off."""
_ROOT: Final = {
    "allowPrivilegeEscalation": True,
    "readOnlyRootFilesystem": False,
    "runAsNonRoot": False,
    "runAsUser": 0,
}
"""What lifts the restrictions of a container."""
_APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
_OF_NODES: Final = "system-"
_DIRECTIVE: Final = "$patch"
_ALL: Final = "ALL"
_AUTHORITY: Final = "tandem-ca"

Json = Mapping[str, Any]


def template_problems(service: ModelService, installation: Installation) -> Iterator[str]:
    """Sentences about what the service takes that the installation does not give to its author."""
    credentials = service.spec.model.credentials_secret
    if credentials in _own_secrets(installation):
        yield f"spec.model.credentialsSecret: {credentials} is Tandem's own; name one with the model's credentials"
    redis = service.spec.redis_secret_ref
    if redis is not None and redis.name in _own_secrets(installation):
        yield f"spec.redisSecretRef.name: {redis.name} is Tandem's own; leave it out, or name one with a Redis URL"
    for index, pool in enumerate(service.spec.pools):
        unlimited = pool.network is not None and pool.network.locked_memory == "unlimited"
        if unlimited and not installation.template_locked_memory:
            yield (
                f"spec.pools[{index}].network.lockedMemory: unlimited is not allowed, since its containers begin as "
                "root; take it out, or have workers.template.lockedMemory set in the chart's values"
            )
        yield from _Rules(service, pool, installation).problems(f"spec.pools[{index}].template")


def _own_secrets(installation: Installation) -> set[str]:
    """Secrets of the installation itself. Each namespace of services has them, and workers alone are to read them."""
    named = (installation.redis_secret, installation.gate_key_secret)
    keys = {each.partition("/")[0] for each in named if each is not None}
    return {
        each for each in (installation.key_secret, installation.tls_secret, _AUTHORITY, *keys) if each is not None
    }


class _Rules:
    """The rules for one pool."""

    def __init__(self, service: ModelService, pool: Pool, installation: Installation) -> None:
        own = service.spec.model.credentials_secret
        self._template = pool.template
        self._secrets = {*installation.template_secrets, *(() if own is None else (own,))}
        self._pulls = {*self._secrets, *installation.image_pull_secrets}
        self._volumes = set(installation.template_volumes)
        self._capabilities = set(installation.template_capabilities)
        self._root = installation.template_root
        account = installation.service_account
        self._accounts = {*installation.template_service_accounts, *(() if account is None else (account,))}

    def problems(self, path: str) -> Iterator[str]:
        yield from _unknown(self._template, _TEMPLATE, path)
        metadata = _part(self._template, "metadata")
        yield from _unknown(metadata, _METADATA, f"{path}.metadata")
        for key, value in _part(metadata, "annotations").items():
            if key.startswith(_APPARMOR) and value == "unconfined":
                yield f"{path}.metadata.annotations.{key}: a profile of unconfined is refused; take it out"
        spec, path = _part(self._template, "spec"), f"{path}.spec"
        yield from _unknown(spec, _SPEC, path)
        yield from _rights(spec, path)
        if str(spec.get("priorityClassName")).startswith(_OF_NODES):
            yield f"{path}.priorityClassName: {spec['priorityClassName']} is for what nodes need; name another class"
        account = spec.get("serviceAccountName")
        if account is not None and account not in self._accounts:
            yield (
                f"{path}.serviceAccountName: {account} has rights that this service is not given; take it out, or "
                "have it added to workers.template.serviceAccounts in the chart's values"
            )
        for index, each in enumerate(_items(spec, "imagePullSecrets")):
            yield from self._secret(each.get("name"), f"{path}.imagePullSecrets[{index}].name", self._pulls)
        yield from self._security(spec, path)
        for key in ("initContainers", "containers"):
            for index, container in enumerate(_items(spec, key)):
                yield from self._container(container, f"{path}.{key}[{index}]")
        for index, volume in enumerate(_items(spec, "volumes")):
            yield from self._volume(volume, f"{path}.volumes[{index}]")

    def _container(self, container: Json, path: str) -> Iterator[str]:
        yield from _unknown(container, _CONTAINER, path)
        yield from self._security(container, path)
        for index, port in enumerate(_items(container, "ports")):
            if port.get("hostPort"):
                yield f"{path}.ports[{index}].hostPort: ports of nodes are not for a template; take it out"
        for index, source in enumerate(_items(container, "envFrom")):
            name = _part(source, "secretRef").get("name")
            yield from self._secret(name, f"{path}.envFrom[{index}].secretRef.name", self._secrets)
        for index, variable in enumerate(_items(container, "env")):
            name = _part(_part(variable, "valueFrom"), "secretKeyRef").get("name")
            yield from self._secret(name, f"{path}.env[{index}].valueFrom.secretKeyRef.name", self._secrets)

    def _security(self, owner: Json, path: str) -> Iterator[str]:
        path = f"{path}.securityContext"
        if "securityContext" in owner and not isinstance(owner["securityContext"], dict):
            yield f"{path}: what Tandem sets there cannot be taken away; name single fields"
        context = _part(owner, "securityContext")
        yield from _unknown(context, _SECURITY, path)
        yield from _rights(context, path)
        yield from (f"{path}.{key}: it cannot be taken away" for key in sorted(context) if context[key] is None)
        if not self._root:
            for key in sorted(context.keys() & _ROOT.keys()):
                if context[key] == _ROOT[key]:
                    yield (
                        f"{path}.{key}: {str(context[key]).lower()} is not allowed; take it out, or have "
                        "workers.template.root set in the chart's values"
                    )
        for key in ("seccompProfile", "appArmorProfile"):
            if _part(context, key).get("type") == "Unconfined":
                yield f"{path}.{key}: a profile of Unconfined is refused; RuntimeDefault and Localhost are allowed"
        capabilities, path = _part(context, "capabilities"), f"{path}.capabilities"
        yield from _unknown(capabilities, frozenset({"add", "drop"}), path)
        if "drop" in capabilities and _ALL not in (capabilities["drop"] or ()):
            yield f"{path}.drop: it must have {_ALL}; add what is needed"
        for name in capabilities.get("add") or ():
            if name not in self._capabilities:
                yield (
                    f"{path}.add: {name} is not allowed; take it out, or have it added to "
                    "workers.template.capabilities in the chart's values"
                )

    def _volume(self, volume: Json, path: str) -> Iterator[str]:
        for kind in sorted(volume.keys() - {"name", _DIRECTIVE}):
            where = str(_part(volume, kind).get("path", "")) if kind == "hostPath" else ""
            if kind in _VOLUMES or (where or kind) in self._volumes:
                continue
            what = f"{kind} {where}" if where else f"a volume of kind {kind}"
            yield (
                f"{path}.{kind}: {what} is not allowed; take a claim or an emptyDir, or have {where or kind} added "
                "to workers.template.volumes in the chart's values"
            )
        yield from self._secret(_part(volume, "secret").get("secretName"), f"{path}.secret.secretName", self._secrets)
        for index, source in enumerate(_items(_part(volume, "projected"), "sources")):
            place = f"{path}.projected.sources[{index}]"
            yield from _unknown(source, _PROJECTED, place)
            yield from self._secret(_part(source, "secret").get("name"), f"{place}.secret.name", self._secrets)

    def _secret(self, name: object, path: str, allowed: set[str]) -> Iterator[str]:
        if name is not None and name not in allowed:
            yield (
                f"{path}: {name} is not this service's Secret; take model.credentialsSecret, or have it added to "
                "workers.template.secrets in the chart's values"
            )


def _unknown(value: Json, known: frozenset[str], path: str) -> Iterator[str]:
    for key in sorted(value.keys() - known):
        if key == _DIRECTIVE:
            yield f"{path}.{key}: what Tandem sets there cannot be replaced or deleted as a whole; name single fields"
        else:
            yield f"{path}.{key} is not allowed in a pool's template; take it out"


def _rights(value: Json, path: str) -> Iterator[str]:
    for key in sorted(value.keys() & _FALSE):
        if value[key] is not False:
            yield f"{path}.{key}: a template can only say false; take it out"


def _part(value: Json, key: str) -> Json:
    """A mapping within another one; nothing where it is absent or of another type, which the API server refuses."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _items(value: Json, key: str) -> list[Json]:
    found = value.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
