"""Resumable requests as workers keep them: sealed, so that a router believes only what a router wrote; and the keys
under which they are claimed, which only a router can compute. Pure.

A key is an HMAC of tenant and request id, so another tenant's request cannot be asked for, guessed or not; the seal
is an HMAC over everything a router needs to go on. Both use the keys that sign KV tickets.
"""

import hashlib
import hmac
import struct
from typing import Final

import msgspec

from kv_transfer.tickets import Keyring, TicketKey
from router.generation import Generation
from tandem.core.request import RequestSpec, spec_fields
from tandem.core.spans import TraceContext

_MAC_BYTES: Final = 32
_KEY_LABEL: Final = b"tandem-resume-key\x00"
_SEAL_LABEL: Final = b"tandem-resume-seal\x00"
_LENGTH: Final = struct.Struct("<H")


class ResumeToken(RequestSpec, frozen=True, omit_defaults=False, kw_only=True):
    """The token that travels with every attempt of a resumable request. `cached_tokens` are the tokens that the
    attempt's placement counted on."""

    request_id: str
    model: str
    tenant: str
    n: int
    seed: int
    timeout_s: float
    received_wall: float
    trace_id: str
    span_id: str
    sampled: bool
    resume: bytes
    cached_tokens: int
    revision: str = ""
    images: bytes = b""
    """`images_digest` of its images, which workers keep beside what is sealed."""

    def generation(self, received: float, images: tuple[bytes, ...] = ()) -> Generation:
        """The request again; `received` is when it arrived, on this router's clock."""
        return Generation(
            **spec_fields(self),
            request_id=self.request_id,
            model=self.model,
            tenant=self.tenant,
            n=self.n,
            seed=self.seed,
            timeout_s=self.timeout_s,
            received=received,
            received_wall=self.received_wall,
            trace=TraceContext(self.trace_id, self.span_id, self.sampled),
            resume=self.resume,
            revision=self.revision,
            images=images,
        )


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(ResumeToken).decode


def resume_key(keyring: Keyring, generation: Generation) -> bytes:
    """Under which workers know a request of this router."""
    return _key(keyring.current, generation.tenant, generation.request_id)


def resume_keys(keyring: Keyring, tenant: str, request_id: str) -> tuple[bytes, ...]:
    """Under which workers may know a request, also while keys are being rotated."""
    keys = (keyring.current,) if keyring.other is None else (keyring.current, keyring.other)
    return tuple(_key(key, tenant, request_id) for key in keys)


def encode_resume_token(keyring: Keyring, generation: Generation, cached_tokens: int) -> bytes:
    """A request for a worker to keep."""
    assert generation.resume is not None, "only resumable requests are sealed"
    body = _ENCODE(
        ResumeToken(
            **spec_fields(generation),
            request_id=generation.request_id,
            model=generation.model,
            tenant=generation.tenant,
            n=generation.n,
            seed=generation.seed,
            timeout_s=generation.timeout_s,
            received_wall=generation.received_wall,
            trace_id=generation.trace.trace_id,
            span_id=generation.trace.span_id,
            sampled=generation.trace.sampled,
            resume=generation.resume,
            cached_tokens=cached_tokens,
            revision=generation.revision,
            images=images_digest(generation.images),
        )
    )
    name = keyring.current.key_id.encode()
    signed = _LENGTH.pack(len(name)) + name + body
    return _mac(keyring.current, signed) + signed


def images_digest(images: tuple[bytes, ...]) -> bytes:
    """A digest that tells these images from all others; empty for none."""
    if not images:
        return b""
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in images)).digest()


def decode_resume_token(keyring: Keyring, sealed: bytes) -> ResumeToken | None:
    """The token that was sealed; None when no router with these keys sealed it."""
    signed = sealed[_MAC_BYTES:]
    if len(signed) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(signed)[0]
    key = keyring.find(signed[_LENGTH.size : end].decode("ascii", "replace"))
    if key is None or not hmac.compare_digest(_mac(key, signed), sealed[:_MAC_BYTES]):
        return None
    try:
        return _DECODE(signed[end:])
    except msgspec.DecodeError:
        return None  # Sealed by a router of another version.


def _mac(key: TicketKey, signed: bytes) -> bytes:
    return hmac.digest(key.secret, _SEAL_LABEL + signed, "sha256")


def _key(key: TicketKey, tenant: str, request_id: str) -> bytes:
    name = tenant.encode()
    return hmac.digest(key.secret, _KEY_LABEL + _LENGTH.pack(len(name)) + name + request_id.encode(), "sha256")
