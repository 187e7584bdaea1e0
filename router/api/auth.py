"""Authentication of clients: API keys, the tenants they belong to, and the tenants' cache salts.

Without a key file every client is the one, nameless tenant. With one, a request without a known key is refused, and
tenants never share KV blocks: their salts differ.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from router.api.quota import UNBOUNDED, Quota
from tandem.core.errors import TandemError

SALT_KEY_BYTES_MIN: Final = 16


@dataclass(frozen=True)
class Caller:
    """An authenticated client. `models` limits what it may use; empty means every model. An `operator` runs the
    service: it sees the story of every request, including what no other client may see."""

    tenant: str = ""
    tenant_salt: str = ""
    models: tuple[str, ...] = ()
    quota: Quota = UNBOUNDED
    operator: bool = False

    def check_model(self, model: str) -> None:
        """Raises `not_allowed`."""
        if self.models and model not in self.models:
            raise TandemError("not_allowed", f"this API key may not use the model {model!r}", param="model")

    def check_operator(self, what: str) -> None:
        """Raises `not_allowed`."""
        if not self.operator:
            why = f'{what} is for whoever runs the service: ask with a key that has "operator": true'
            raise TandemError("not_allowed", why)

    def check_priority(self, priority: int | None) -> int:
        """The priority of a request that asks for `priority`; 0 if it asks for none. Raises `not_allowed` above the
        maximum of its tenant: a higher priority goes first, and weighs more in the choice of workers."""
        most = self.quota.priority_max
        if priority is not None and most is not None and priority > most:
            raise TandemError(
                "not_allowed",
                f"priority = {priority}: this API key may ask for {most} at most; `priority_max` of its tenant in the"
                " key file says how high",
                param="priority",
            )
        return priority or 0


ANYONE: Final = Caller(operator=True)
"""The caller of every request where there is no key file to tell clients apart."""


@dataclass(frozen=True)
class Keys:
    """Known callers by SHA-256 of their key, so that comparing takes the same time for every wrong key."""

    callers: Mapping[bytes, Caller] | None = None
    disabled: Mapping[bytes, str] = field(default_factory=dict)

    def caller(self, authorization: str | None) -> Caller:
        """The caller that presents this `Authorization` value. Raises `invalid_api_key` or `not_allowed`."""
        if self.callers is None:
            return ANYONE
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise TandemError("invalid_api_key", "an API key is needed: send `Authorization: Bearer <key>`")
        digest = _digest(key.strip())
        caller = self.callers.get(digest)
        if caller is None:
            raise TandemError("invalid_api_key", "this API key is not known here")
        if digest in self.disabled:
            raise TandemError("not_allowed", f"this API key is disabled: {self.disabled[digest]}")
        return caller


class _KeyEntry(msgspec.Struct, forbid_unknown_fields=True):
    tenant: str
    models: tuple[str, ...] = ()
    disabled: str | None = None
    """Why the key is not accepted any more."""
    operator: bool = False


class _TenantEntry(msgspec.Struct, forbid_unknown_fields=True):
    requests_per_minute: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tokens_per_minute: Annotated[int, msgspec.Meta(ge=1)] | None = None
    kv_bytes_max: Annotated[int, msgspec.Meta(ge=0)] | None = None
    priority_max: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Highest priority that the tenant may ask for. No tenant goes before others unless the key file says so; any
    tenant may choose to go behind them."""


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    salt_key: str
    keys: dict[str, _KeyEntry | str]
    tenants: dict[str, _TenantEntry] = {}


def load_keys(path: Path) -> Keys:
    """Read a key file: `{"salt_key": "…", "keys": {"<key>": "<tenant>" | {"tenant": …, "models": […]}}}`.

    `"tenants": {"<tenant>": {"requests_per_minute": …, "tokens_per_minute": …, "kv_bytes_max": …, "priority_max":
    …}}` gives tenants quotas and the highest priority they may ask for, 0 by default; `"operator": true` beside a
    key's tenant makes it an operator's key, without a bound on priorities. Every router of a service needs the same
    `salt_key`, else they do not share prefixes. Raises `bad_setting`.
    """
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_KeyFile)
    except OSError as error:
        raise TandemError("bad_setting", f"api keys file {path}: {error.strerror}", param="api_keys") from error
    except msgspec.DecodeError as error:
        raise TandemError("bad_setting", f"api keys file {path}: {error}", param="api_keys") from error
    salt_key = content.salt_key.encode()
    if len(salt_key) < SALT_KEY_BYTES_MIN:
        raise TandemError(
            "bad_setting",
            f"api keys file {path}: salt_key needs at least {SALT_KEY_BYTES_MIN} bytes",
            param="salt_key",
        )
    entries = {
        _digest(key): entry if isinstance(entry, _KeyEntry) else _KeyEntry(entry)
        for key, entry in content.keys.items()
    }
    _check_tenants(content, [entry.tenant for entry in entries.values()], path)
    return Keys(
        {
            digest: _caller(entry, salt_key, content.tenants.get(entry.tenant, _TenantEntry()))
            for digest, entry in entries.items()
        },
        {digest: entry.disabled for digest, entry in entries.items() if entry.disabled is not None},
    )


def tenant_salt(salt_key: bytes, tenant: str) -> str:
    """The salt that keeps a tenant's KV block names apart: HMAC-SHA256, 128 bits in hex."""
    return hmac.new(salt_key, b"tandem-tenant\x00" + tenant.encode(), hashlib.sha256).hexdigest()[:32]


def _check_tenants(content: _KeyFile, known: list[str], path: Path) -> None:
    for tenant in content.tenants:
        if tenant not in known:
            raise TandemError(
                "bad_setting", f"api keys file {path}: tenants.{tenant} has a quota but no key", param="tenants"
            )


def _caller(entry: _KeyEntry, salt_key: bytes, limits: _TenantEntry) -> Caller:
    priority_max = None if entry.operator else limits.priority_max
    quota = Quota(limits.requests_per_minute, limits.tokens_per_minute, limits.kv_bytes_max, priority_max)
    return Caller(entry.tenant, tenant_salt(salt_key, entry.tenant), entry.models, quota, entry.operator)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
