"""Proofs by which the two ends of a link show each other that they hold the same key, without sending it.

The router's greeting carries a nonce. The worker answers with a nonce of its own and its proof over both nonces; the
router answers with its proof over both. A proof is HMAC-SHA256 under a key that is derived from the shared one for
links alone. A proof covers which end it is from, and which link and which of the link's streams it is for, so that it
cannot be replayed or used in another place. Where certificates do the same, none of these messages is exchanged.
Pure.
"""

import hmac
from collections.abc import Sequence
from typing import Final, Literal

from tandem.core.errors import TandemError
from tandem.process.tls_settings import TlsSettings

Side = Literal["router", "worker"]
NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32
_PURPOSE: Final = b"tandem worker link 1"


class LinkKeys:
    """Keys of which the first is shown and all are taken, so that they can be rotated as ticket keys are."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        assert secrets, "a link is proved with a key"
        self._derived = [hmac.digest(secret, _PURPOSE, "sha256") for secret in secrets]

    def __repr__(self) -> str:
        return f"LinkKeys({len(self._derived)})"

    def prove(self, proof: "Proof") -> bytes:
        """The proof of the end that speaks first, under the current key."""
        return _mac(self._derived[0], proof)

    def answer(self, theirs: "Proof", given: bytes, ours: "Proof") -> bytes:
        """Our proof under the key that theirs was made with. Raises `link_lost` when that is none of ours."""
        for key in self._derived:
            if hmac.compare_digest(_mac(key, theirs), given):
                return _mac(key, ours)
        raise TandemError("link_lost", f"the {theirs.side} does not hold the ticket key of this {ours.side}")


def keys_without(tls: TlsSettings, keys: LinkKeys | None) -> LinkKeys | None:
    """`keys`, where no certificates say who is there."""
    return None if tls.certificate is not None else keys


class Proof:
    """The content that a proof covers: `side` makes the proof, for one stream of the link of this name."""

    def __init__(self, side: Side, link: str, stream: str, nonces: tuple[bytes, bytes]) -> None:
        self.side = side
        self.covered = b"".join(
            len(part).to_bytes(4, "little") + part
            for part in (side.encode(), link.encode(), stream.encode(), *nonces)
        )


def both(link: str, stream: str, router_nonce: bytes, worker_nonce: bytes) -> tuple[Proof, Proof]:
    """The content that the router's and the worker's proof cover. Raises `link_lost` for nonces that do not have
    `NONCE_BYTES` bytes."""
    if len(router_nonce) != NONCE_BYTES or len(worker_nonce) != NONCE_BYTES:
        raise TandemError("link_lost", f"a nonce has to have {NONCE_BYTES} bytes")
    nonces = (router_nonce, worker_nonce)
    return Proof("router", link, stream, nonces), Proof("worker", link, stream, nonces)


def _mac(key: bytes, proof: Proof) -> bytes:
    return hmac.digest(key, proof.covered, "sha256")
