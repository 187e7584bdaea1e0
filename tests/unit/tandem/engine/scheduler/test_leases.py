"""Export leases pin blocks, answer for their names only, and end by themselves."""

import pytest

from tandem.core.kv import Handle
from tandem.engine.digest import unbind
from tandem.engine.protocol import FirstTokens, Gone, Pending
from tandem.engine.scheduler.blocks import BlockPool
from tandem.engine.scheduler.leases import LeaseTable

A, B, C = (bytes([number]) * 16 for number in range(3))
WORDS = bytes(range(16))


@pytest.fixture
def table() -> LeaseTable:
    """Four slots; slots 0 and 1 hold complete blocks, in use."""
    pool = BlockPool(4)
    for slot in pool.allocate(2):
        pool.seal(slot, WORDS)
    return LeaseTable(pool, tombstones_max=3)


def test_a_covered_block_is_pending_until_it_is_exported(table: LeaseTable) -> None:
    table.open("x", 10.0, (A, B))
    assert table.look("x", A, 5) == Pending()
    table.export("x", A, 0)
    handle = table.look("x", A, 5)
    assert isinstance(handle, Handle)
    assert (handle.epoch, handle.name, handle.slot, handle.generation) == (5, A, 0, 1)
    assert unbind(handle.digests, 5, A, 1) == WORDS
    assert unbind(handle.digests, 6, A, 1) != WORDS
    assert table.look("x", B, 5) == Pending()
    assert isinstance(table.look("x", C, 5), Gone)
    assert isinstance(table.look("y", A, 5), Gone)


def test_exports_pin_their_slots_until_the_release(table: LeaseTable) -> None:
    table.open("x", 10.0, (A, B))
    table.export("x", A, 0)
    table.export("x", A, 0)
    table.pool.release(0)
    assert table.pool.refs(0) == 1
    assert table.exported == 1
    table.release("x")
    assert table.pool.refs(0) == 0
    assert table.exported == 0
    assert isinstance(table.look("x", A, 5), Gone)


def test_a_block_under_two_leases_counts_once(table: LeaseTable) -> None:
    table.open("x", 10.0, (A,))
    table.open("y", 10.0, (A,))
    table.export("x", A, 0)
    table.export("y", A, 0)
    assert table.exported == 1
    assert table.pool.refs(0) == 3
    table.release("x")
    assert table.exported == 1
    assert isinstance(table.look("y", A, 5), Handle)


def test_a_lease_cannot_expire_while_its_work_runs(table: LeaseTable) -> None:
    table.open("x", 10.0, (A,))
    table.export("x", A, 0)
    assert table.expire(1e9) == ()
    table.produced("x", 100.0)
    assert table.next_expiry == 110.0
    assert table.expire(109.9) == ()
    assert table.renew("x", 109.0)
    assert table.expire(111.0) == ()
    assert table.expire(119.0) == ("x",)
    assert not table.exists("x")
    assert table.exported == 0
    assert table.expired == 1
    assert not table.renew("x", 119.0)
    assert table.next_expiry == float("inf")


def test_a_release_before_the_opening_leaves_a_tombstone_and_tombstones_are_bounded(table: LeaseTable) -> None:
    table.release("late")
    assert table.tombstoned("late")
    for number in range(3):
        table.release(f"other-{number}")
    assert not table.tombstoned("late")
    assert table.tombstoned("other-2")


def test_revoked_blocks_are_pending_again(table: LeaseTable) -> None:
    table.open("x", 10.0, (A,))
    table.export("x", A, 0)
    table.take_touched()
    table.revoke("x")
    assert table.take_touched() == ("x",)
    assert table.look("x", A, 5) == Pending()
    assert table.pool.refs(0) == 1
    table.export("x", A, 1)
    handle = table.look("x", A, 5)
    assert isinstance(handle, Handle)
    assert handle.slot == 1


def test_first_tokens_and_touched_leases(table: LeaseTable) -> None:
    table.open("x", 10.0, (A,))
    assert table.take_touched() == ("x",)
    assert table.first_tokens("x") is None
    first = FirstTokens(((0, 7, None),))
    table.sampled("x", first)
    assert table.first_tokens("x") == first
    assert table.take_touched() == ("x",)
    assert table.take_touched() == ()
    table.export("x", A, 0)
    table.release("x")
    assert table.take_touched() == ("x",)
    assert table.first_tokens("x") is None


def test_the_end_of_an_incarnation_releases_everything(table: LeaseTable) -> None:
    table.open("x", 10.0, (A,))
    table.open("y", 10.0, (B,))
    table.export("x", A, 0)
    table.export("y", B, 1)
    table.release_all()
    assert len(table) == 0
    table.pool.check({0: 1, 1: 1})


def test_a_renewal_puts_no_end_to_the_lease_of_a_running_work(table: LeaseTable) -> None:
    """Each block a receiver gets renews it: a prefill that takes longer than a lease would lose its blocks."""
    table.open("x", 10.0, (A,))
    table.open("y", 10.0, (B,))
    table.export("x", A, 0)
    table.produced("y", 0.0)
    assert table.renew("x", 5.0)
    assert table.expire(1e9) == ("y",)
    assert isinstance(table.look("x", A, 5), Handle)


@pytest.mark.parametrize("blocks_max", [0, 1, 2])
def test_peers_pin_no_more_blocks_than_they_may(blocks_max: int) -> None:
    pool = BlockPool(4)
    for slot, name in zip(pool.allocate(3), (A, B, C), strict=True):
        pool.publish(slot, name, WORDS)
    table = LeaseTable(pool, tombstones_max=3)
    table.share("x", 10.0, (A, B, C), blocks_max, 0.0)
    assert table.exported == blocks_max
    table.share("y", 10.0, (A, B, C), blocks_max, 0.0)
    assert table.exported == blocks_max, "what is pinned already is shared, and nothing beside"


def test_whoever_waits_for_a_lease_hears_of_its_end(table: LeaseTable) -> None:
    """Else a peer waits for blocks that will not come, until it gives up."""
    table.open("x", 10.0, (A,))
    table.take_touched()
    table.release("x")
    assert table.take_touched() == ("x",)


def test_when_a_work_got_on_is_known_of_its_lease(table: LeaseTable) -> None:
    """Who waits for its blocks judges it by that."""
    assert table.moved("x") == float("-inf")
    table.open("x", 10.0, (A,))
    assert table.moved("x") == float("-inf")
    table.move("x", 7.0)
    table.move("y", 8.0)
    assert table.moved("x") == 7.0
    assert table.moved("y") == float("-inf")


def test_only_leases_of_works_that_are_over_are_there_for_their_peer_alone(table: LeaseTable) -> None:
    table.open("x", 10.0, (A,))
    table.open("y", 10.0, (B,))
    table.produced("y", 100.0)
    assert [lease.lease_id for lease in table.finished()] == ["y"]


def test_whoever_waits_hears_of_every_block_that_comes_or_will_not(table: LeaseTable) -> None:
    table.open("x", 10.0, (A, B, C))
    table.take_touched()
    table.export("x", A, 0)
    assert table.take_touched() == ("x",)
    table.give_up("x", (A, B))
    assert table.take_touched() == ("x",)
    assert isinstance(table.look("x", A, 5), Handle), "it has come"
    assert isinstance(table.look("x", B, 5), Gone)
    assert table.look("x", C, 5) == Pending()


def test_a_block_under_three_leases_is_pinned_until_the_last_ends(table: LeaseTable) -> None:
    for number in range(3):
        table.open(f"{number}", 10.0, (A,))
        table.export(f"{number}", A, 0)
    for number in range(3):
        assert (table.exported, table.owed) == (1, 1)
        assert table.pins() == {0: 3 - number}
        table.check()
        table.release(f"{number}")
    assert (table.exported, table.owed) == (0, 0)


def test_a_lease_that_is_released_again_is_remembered_anew(table: LeaseTable) -> None:
    """Its work may be on its way still, behind many others."""
    for lease_id in ("a", "b", "c", "a", "d"):
        table.release(lease_id)
    assert [lease_id for lease_id in "abcd" if table.tombstoned(lease_id)] == ["a", "c", "d"]
    ended, unknown = table.look("a", A, 5), table.look("e", A, 5)
    assert (ended, unknown) == (Gone("the lease has ended"), Gone("no such lease"))
