"""Physical blocks: holders, what can be found, what goes first."""

import pytest

from agents.engine.blocks import BlockPool, digest
from schemas.errors import EngineError


def published(pool: BlockPool, name: bytes, conversation: str = "a") -> int:
    """A findable block that nobody holds."""
    block = pool.take()
    assert block is not None
    pool.publish(block, name, conversation)
    pool.drop(block)
    return block


def test_a_digest_names_all_tokens_up_to_the_block():
    one, two = list(range(16)), list(range(16, 32))
    names = {digest(b"", one), digest(b"", two), digest(digest(b"", one), two), digest(digest(b"", two), one)}
    assert len(names) == 4
    assert digest(b"", one) == digest(b"", list(range(16)))


def test_blocks_run_out_and_come_back():
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    assert {first, second} == {0, 1}
    assert pool.take() is None
    pool.drop(second)
    assert (pool.available, pool.take()) == (1, second)


def test_a_findable_block_stays_until_its_room_is_needed_the_least_recently_used_first():
    pool = BlockPool(3)
    blocks = {name: published(pool, name) for name in (b"x", b"y", b"z")}
    pool.hold(blocks[b"x"], "a")
    pool.drop(blocks[b"x"])
    assert pool.available == 3
    assert pool.take() == blocks[b"y"]
    assert pool.find(b"y") is None
    assert pool.find(b"x") == blocks[b"x"]
    assert pool.evicted == 1
    pool.audit([blocks[b"y"]])


def test_only_a_block_of_one_holder_that_nobody_finds_is_writable():
    pool = BlockPool(2)
    block = pool.take()
    assert pool.writable(block)
    pool.hold(block, "b")
    assert not pool.writable(block)
    pool.drop(block)
    pool.publish(block, b"x", "a")
    assert not pool.writable(block)


def test_equal_blocks_are_found_once():
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    pool.publish(first, b"x", "a")
    pool.publish(second, b"x", "b")
    assert pool.find(b"x") == first
    pool.drop(second)
    assert pool.take() == second
    pool.audit([first, second])


def test_blocks_of_an_ended_conversation_go_first_but_not_those_of_others():
    pool = BlockPool(5)
    shared, own, last = (published(pool, name, "over") for name in (b"1", b"2", b"3"))
    other = published(pool, b"4", "other")
    pool.hold(shared, "other")
    pool.drop(shared)
    held = pool.take()
    pool.cool("over")
    pool.cool("unknown")
    assert [pool.take() for _ in range(4)] == [last, own, other, shared]
    pool.audit([shared, own, last, other, held])


def test_forgetting_frees_idle_blocks_and_keeps_held_ones():
    pool = BlockPool(2)
    idle, held = published(pool, b"x"), pool.take()
    pool.publish(held, b"y", "a")
    pool.forget()
    assert pool.find(b"x") is pool.find(b"y") is None
    pool.audit([held])
    assert pool.take() == idle
    assert pool.evicted == 0


def test_dropping_what_nobody_holds_is_an_error():
    pool = BlockPool(1)
    with pytest.raises(EngineError):
        pool.drop(0)


def test_the_audit_finds_damage():
    def damaged(how) -> BlockPool:
        pool = BlockPool(4)
        pool.take()
        published(pool, b"x")
        pool.audit([0])
        how(pool)
        return pool

    for how in (
        lambda pool: pool.take(),  # held by nobody
        lambda pool: pool._free.append(0),  # free and held
        lambda pool: pool._free.pop(),  # lost
        lambda pool: pool._index.clear(),
        lambda pool: pool._private.clear(),
    ):
        with pytest.raises(EngineError):
            damaged(how).audit([0])
    for holders in ([], [0, 0], [0, 1]):
        with pytest.raises(EngineError):
            damaged(lambda pool: None).audit(holders)
