"""Blocks: reference counts, copy on write, the order in which free blocks are taken, names, waste."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from octavo.core.kv import KVUsage, reserve_up_to
from octavo.core.kv.paged import PagedKVCache
from octavo.errors import ConfigError
from tests.core.helpers import make_request

if TYPE_CHECKING:
    from octavo.core.request import Request


def compute(cache: PagedKVCache, request: Request, end: int | None = None) -> list[tuple[int, int]]:
    """Reserve, compute and publish up to ``end`` (all known tokens)."""
    copies = cache.reserve(request, len(request.token_ids) if end is None else end)
    assert copies is not None
    request.num_computed = len(request.token_ids) if end is None else end
    cache.publish(request)
    cache.check()
    return copies


def hold(cache: PagedKVCache, name: str, tokens: list[int], **options: object) -> Request:
    request = make_request(name, tokens=tokens, **options)
    request.num_computed = cache.adopt(request)
    compute(cache, request)
    return request


def drop(cache: PagedKVCache, request: Request) -> None:
    cache.release(request)
    request.num_computed = 0
    cache.check()


def test_reserve_appends_just_enough_blocks() -> None:
    cache = PagedKVCache(4, 4)
    request = make_request(length=9)
    assert cache.reserve(request, 5) == [] and request.block_ids == [0, 1] and request.capacity == 8
    assert cache.reserve(request, 8) == [] and request.block_ids == [0, 1]
    assert cache.reserve(request, 9) == [] and request.block_ids == [0, 1, 2] and cache.num_free == 1
    cache.check()


def test_reserve_changes_nothing_when_it_does_not_fit() -> None:
    cache = PagedKVCache(2, 4)
    request = make_request(length=12)
    assert cache.reserve(request, 12) is None
    assert request.block_ids == [] and request.capacity == 0 and cache.num_free == 2
    cache.check()
    assert reserve_up_to(cache, request, 12) == (8, [])
    request.num_computed = 8
    assert reserve_up_to(cache, request, 12) == (8, None)


def test_prefix_is_found_in_whole_blocks_and_leaves_a_token() -> None:
    cache = PagedKVCache(8, 4)
    first = hold(cache, "a", list(range(8)))
    assert cache.match(make_request(tokens=list(range(8)))) == 4  # 8 would leave nothing whose logits could be sampled
    second = make_request("b", tokens=[*range(8), 50])
    assert cache.match(second) == 8 and second.block_ids == []
    second.num_computed = cache.adopt(second)
    assert second.num_computed == 8 and second.block_ids == first.block_ids
    cache.check()
    assert cache.match(make_request(tokens=[1, *range(1, 9)])) == 0


def test_release_keeps_published_blocks_findable_and_adopt_revives_them() -> None:
    cache = PagedKVCache(8, 4)
    drop(cache, hold(cache, "a", list(range(9))))
    assert cache.num_free == 8 and cache.usage() == (0, 0, 0)
    again = hold(cache, "b", list(range(9)))
    assert again.block_ids[:2] == [0, 1] and again.num_published == 2


def test_free_blocks_are_taken_unnamed_first_then_fresh_then_least_recently_freed() -> None:
    cache = PagedKVCache(6, 4)
    old = hold(cache, "old", [1] * 4 + [9])  # blocks 0 (named), 1
    new = hold(cache, "new", [2] * 4 + [9])  # blocks 2 (named), 3
    drop(cache, old)
    drop(cache, new)
    taker = make_request("taker", length=24)
    order = []
    for end in range(4, 25, 4):
        assert cache.reserve(taker, end) == []
        order.append(taker.block_ids[-1])
    assert order == [3, 1, 4, 5, 0, 2]  # last freed first; never used; oldest name first
    assert cache.match(make_request(tokens=[1] * 5)) == cache.match(make_request(tokens=[2] * 5)) == 0
    cache.check()


def test_tail_is_evicted_before_the_head() -> None:
    cache = PagedKVCache(4, 4)
    drop(cache, hold(cache, "a", list(range(16))))
    taker = make_request("b", tokens=[90] * 8)
    assert cache.reserve(taker, 8) == []
    assert cache.match(make_request(tokens=[*range(16), 1])) == 8
    cache.check()


def test_same_content_published_twice_keeps_the_first_block() -> None:
    cache = PagedKVCache(8, 4)
    first, second = make_request("a", length=5), make_request("b", length=5)
    for request in (first, second):  # both started before either was published
        compute(cache, request)
    assert cache.match(make_request(length=5)) == 4
    drop(cache, second)
    third = make_request("c", length=5)
    third.num_computed = cache.adopt(third)
    assert third.num_computed == 4 and third.block_ids == first.block_ids[:1]
    cache.check()


def test_republished_after_release() -> None:
    cache = PagedKVCache(4, 4)
    request = hold(cache, "a", list(range(8)))
    drop(cache, request)
    drop(cache, hold(cache, "b", [90] * 16))  # evicts everything
    request.num_computed = cache.adopt(request)
    assert request.num_computed == 0
    compute(cache, request)
    assert cache.match(make_request(tokens=[*range(8), 1])) == 8


def test_generated_tokens_are_published_too() -> None:
    cache = PagedKVCache(8, 4)
    request = hold(cache, "a", list(range(6)))
    request.token_ids += [6, 7, 8]
    compute(cache, request)
    assert cache.match(make_request(tokens=[*range(9), 1])) == 8


def test_salt_separates_tenants() -> None:
    cache = PagedKVCache(8, 4)
    hold(cache, "a", list(range(8)), cache_salt="alice")
    assert cache.match(make_request(tokens=list(range(9)), cache_salt="alice")) == 8
    assert cache.match(make_request(tokens=list(range(9)), cache_salt="bob")) == 0
    assert cache.match(make_request(tokens=list(range(9)))) == 0


def test_no_prefix_caching() -> None:
    cache = PagedKVCache(8, 4, enable_prefix_caching=False)
    request = hold(cache, "a", list(range(8)))
    assert cache.match(make_request(tokens=list(range(9)))) == 0 and request.block_hashes == []


@pytest.mark.parametrize("length", [5, 8])
def test_fork_copies_the_last_block_on_write(length: int) -> None:
    cache = PagedKVCache(8, 4)
    parent = hold(cache, "p", list(range(length)))
    parent.token_ids.append(50)
    child = make_request("p", tokens=list(range(length)), index=1)
    child.num_computed = cache.adopt(child, parent)
    assert child.num_computed == length - 1 and child.block_ids == parent.block_ids and child.capacity == parent.capacity == 0
    cache.check()
    shared = parent.block_ids[1]
    copies = compute(cache, child)
    assert copies == [(shared, child.block_ids[1])] and child.block_ids[0] == parent.block_ids[0]
    assert cache.reserve(parent, length + 1) == []  # sole holder again
    assert parent.block_ids[1] == shared
    cache.check()


def test_fork_first_writer_copies_the_last_keeps() -> None:
    cache = PagedKVCache(8, 4)
    parent = hold(cache, "p", list(range(6)))
    children = [make_request("p", tokens=list(range(6)), index=i) for i in (1, 2)]
    for child in children:
        child.num_computed = cache.adopt(child, parent)
    parent.token_ids.append(50)
    copies = [compute(cache, request) for request in (parent, *children)]
    assert [len(c) for c in copies] == [1, 1, 0]
    assert len({request.block_ids[1] for request in (parent, *children)}) == 3


def test_fork_never_writes_into_a_block_that_bears_its_parents_text() -> None:
    cache = PagedKVCache(8, 4)
    parent = make_request("p", tokens=list(range(8)))  # already generated 2 tokens, which fill block 1
    parent.prompt_len = 6
    compute(cache, parent)
    child = make_request("p", tokens=list(range(6)), index=1)
    child.num_computed = cache.adopt(child, parent)
    cache.release(parent)
    assert cache.match(make_request(tokens=[*range(8), 1])) == 8
    assert cache.reserve(child, 6) == []
    cache.check()
    assert cache.match(make_request(tokens=[*range(8), 1])) == 4  # the child is about to overwrite it


def test_adopt_refuses_a_request_with_blocks() -> None:
    cache = PagedKVCache(8, 4)
    with pytest.raises(ValueError, match="already holds 2 blocks"):
        cache.adopt(hold(cache, "a", list(range(8))))


def test_usage_counts_shared_blocks_once() -> None:
    cache = PagedKVCache(8, 4)
    parent = hold(cache, "p", list(range(5)))
    assert cache.usage() == KVUsage(2, 8, 5) and cache.usage().waste == 3 / 8
    child = make_request("p", tokens=list(range(5)), index=1)
    child.num_computed = cache.adopt(child, parent)
    assert cache.usage() == (2, 8, 5)
    compute(cache, child)
    assert cache.usage() == (3, 12, 6)
    assert KVUsage(0, 0, 0).waste == 0.0


def test_bad_sizes_and_secrets() -> None:
    for blocks, size in ((0, 4), (4, 0), (-1, 4)):
        with pytest.raises(ConfigError, match="at least one block"):
            PagedKVCache(blocks, size)
    for secret in (b"", b"x" * 65):
        with pytest.raises(ConfigError, match=f"1 to 64 bytes, got {len(secret)}"):
            PagedKVCache(4, 4, secret=secret)


def corrupt_reference(cache: PagedKVCache, request: Request) -> None:
    cache._refs[request.block_ids[0]] += 1


def corrupt_free_list(cache: PagedKVCache, request: Request) -> None:
    cache._plain.append(request.block_ids[0])


def corrupt_count(cache: PagedKVCache, request: Request) -> None:
    cache.num_free -= 1


def corrupt_name(cache: PagedKVCache, request: Request) -> None:
    cache._by_digest[b"?" * 16] = request.block_ids[0]


def corrupt_chain(cache: PagedKVCache, request: Request) -> None:
    a, b = cache._digests[request.block_ids[0]], cache._digests[request.block_ids[1]]
    cache._digests[request.block_ids[0]], cache._digests[request.block_ids[1]] = b, a
    cache._by_digest[a], cache._by_digest[b] = request.block_ids[1], request.block_ids[0]


def corrupt_table(cache: PagedKVCache, request: Request) -> None:
    request.block_ids[1] = request.block_ids[0]


def corrupt_capacity(cache: PagedKVCache, request: Request) -> None:
    request.capacity += 4


@pytest.mark.parametrize(
    "corrupt", [corrupt_reference, corrupt_free_list, corrupt_count, corrupt_name, corrupt_chain, corrupt_table, corrupt_capacity]
)
def test_check_notices(corrupt: object) -> None:
    cache = PagedKVCache(8, 4)
    request = hold(cache, "a", list(range(10)))
    corrupt(cache, request)
    with pytest.raises(AssertionError):
        cache.check()
