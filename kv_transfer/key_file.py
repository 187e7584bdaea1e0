"""Ticket keys as they lie in a file: one per line, hexadecimal; the first signs, a second is valid as well.

A key's public name is derived from the key, so that everyone who reads the same file agrees on it.
"""

from hashlib import blake2b
from pathlib import Path

from kv_transfer.tickets import Keyring, TicketKey
from tandem.core.errors import TandemError


def read_keyring(path: Path) -> Keyring:
    """The keys of a file. Raises `bad_setting` naming the file, never its contents."""
    try:
        lines = path.read_text("ascii").split()
        secrets = [bytes.fromhex(line) for line in lines]
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise _bad(path, "must hold hexadecimal keys, one per line") from None
    if not 1 <= len(secrets) <= 2:
        raise _bad(path, f"must hold one key, or two while keys are being rotated; it holds {len(secrets)}")
    keys = [TicketKey(blake2b(secret, digest_size=4).hexdigest(), secret) for secret in secrets]
    return Keyring(keys[0], keys[1] if len(keys) == 2 else None)


def _bad(path: Path, problem: str) -> TandemError:
    return TandemError("bad_setting", f"ticket key file {path} {problem}", param="ticket_key_file")
