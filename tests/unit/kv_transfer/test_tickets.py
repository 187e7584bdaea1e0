"""Tickets: what is signed is believed, and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.tickets import SKEW_S, Claims, Keyring, TicketKey, check, issue
from tandem.core.errors import TandemError

OLD = TicketKey("old", b"an old key of enough bytes")
NEW = TicketKey("new", b"a new key of enough bytes!")
U64 = st.integers(0, 2**64 - 1)
CLAIMS = Claims("tenant-a", 0x11, "lease-1", 0x22, 1000.0)


def verdict(keyring: Keyring, ticket: bytes, wanted: Claims = CLAIMS, wall: float = 990.0) -> Claims:
    return check(
        keyring,
        ticket,
        holder_epoch=wanted.holder_epoch,
        lease_id=wanted.lease_id,
        receiver_epoch=wanted.receiver_epoch,
        wall=wall,
    )


def refusal(keyring: Keyring, ticket: bytes, wanted: Claims = CLAIMS, wall: float = 990.0) -> str:
    with pytest.raises(TandemError) as caught:
        verdict(keyring, ticket, wanted, wall)
    assert caught.value.code == "ticket_refused"
    return caught.value.message


@given(tenant=st.text(max_size=40), lease=st.text(max_size=40), holder=U64, receiver=U64, expires=st.floats(0, 1e10))
def test_what_was_issued_is_accepted_until_it_expires(
    tenant: str, lease: str, holder: int, receiver: int, expires: float
) -> None:
    claims = Claims(tenant, holder, lease, receiver, expires)
    ticket = issue(Keyring(NEW), claims)
    assert verdict(Keyring(NEW), ticket, claims, expires + SKEW_S) == claims
    assert "expired" in refusal(Keyring(NEW), ticket, claims, expires + SKEW_S + 0.1)


@given(position=st.integers(0, 200), bit=st.integers(0, 7))
def test_a_changed_bit_anywhere_is_refused(position: int, bit: int) -> None:
    ticket = bytearray(issue(Keyring(NEW), CLAIMS))
    ticket[position % len(ticket)] ^= 1 << bit
    refusal(Keyring(NEW), bytes(ticket))


@given(garbage=st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_is_raised(garbage: bytes) -> None:
    refusal(Keyring(NEW), garbage)


@given(cut=st.integers(0, 200))
def test_a_cut_ticket_is_refused(cut: int) -> None:
    ticket = issue(Keyring(NEW), CLAIMS)
    refusal(Keyring(NEW), ticket[: cut % len(ticket)])


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        (replace(CLAIMS, holder_epoch=0x12), "holder epoch 11, not 12"),
        (replace(CLAIMS, lease_id="lease-2"), "lease 'lease-1', not 'lease-2'"),
        (replace(CLAIMS, receiver_epoch=0x23), "receiver epoch 22, not 23"),
    ],
)
def test_a_ticket_for_something_else_says_so(wanted: Claims, word: str) -> None:
    assert word in refusal(Keyring(NEW), issue(Keyring(NEW), CLAIMS), wanted)


def test_both_keys_are_valid_while_they_rotate() -> None:
    before, during, after = Keyring(OLD, NEW), Keyring(NEW, OLD), Keyring(NEW)
    for issuer in (before, during):
        for holder in (before, during):
            assert verdict(holder, issue(issuer, CLAIMS)) == CLAIMS
    assert "key 'old', which is not in use" in refusal(after, issue(before, CLAIMS))


def test_a_key_of_the_same_name_and_another_secret_signs_nothing() -> None:
    forged = issue(Keyring(TicketKey("new", b"a guessed key of enough bytes")), CLAIMS)
    assert "signature" in refusal(Keyring(NEW), forged)


def test_missing_and_odd_tickets_are_named() -> None:
    assert "none was presented" in refusal(Keyring(NEW), b"")
    assert "version is 9" in refusal(Keyring(NEW), b"\x09" + issue(Keyring(NEW), CLAIMS)[1:])


def test_a_short_secret_stops_the_start_and_secrets_are_not_shown() -> None:
    with pytest.raises(TandemError) as caught:
        TicketKey("k", b"short")
    assert caught.value.code == "bad_setting"
    assert "enough bytes" not in repr(Keyring(NEW, OLD))


def test_a_ticket_of_an_unknown_key_is_refused_also_where_there_are_two() -> None:
    third = TicketKey("third", OLD.secret)
    assert "third" in refusal(Keyring(NEW, OLD), issue(Keyring(third), CLAIMS))
    assert Keyring(NEW, OLD).find("third") is None


def test_a_ticket_that_is_cut_off_anywhere_is_refused_by_name() -> None:
    ticket = issue(Keyring(NEW), CLAIMS)
    for size in range(len(ticket)):
        assert refusal(Keyring(NEW), ticket[:size])
