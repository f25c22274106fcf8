"""The KV cache as pages: fixed-size blocks with reference counts, shared by prefix and by fork, copied on write, evicted least recently used.

A block is in exactly one of four places::

    never used ──take──► held (refs >= 1) ──refs 0──► plain: content has no name     ──take (last in, first out)──► held
         │                   ▲    │
         │                   │    └────────refs 0──► cached: findable by its digest  ──adopt──► held, or evicted by take
         └── ids >= _fresh   └── adopt adds references

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from octavo.core.kv import KVUsage
from octavo.core.kv.prefix import PrefixHasher
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.core.request import Request


class PagedKVCache:
    """A :class:`octavo.core.kv.KVCache` for full attention: position p of a request lives in block ``block_ids[p // block_size]``.

    ``secret`` keys the prefix hashes (random when None); ``enable_prefix_caching=False`` makes :meth:`match` find nothing.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True, secret: bytes | None = None) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ConfigError(f"the KV cache needs at least one block of at least one token, got {num_blocks:,} blocks of {block_size:,}")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.max_tokens = num_blocks * block_size
        self.num_free = num_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self._hasher = PrefixHasher(block_size, secret)
        self._refs = [0] * num_blocks
        self._digests: list[bytes | None] = [None] * num_blocks
        self._by_digest: dict[bytes, int] = {}
        self._fresh = 0  # blocks from this id on were never used
        self._plain: list[int] = []  # free, content of no use
        self._cached: OrderedDict[int, None] = OrderedDict()  # free but findable, least recently freed first
        self._holders: set[Request] = set()  # whoever has blocks

    # ---- the six verbs --------------------------------------------------------------------------------------------------------------

    def match(self, request: Request) -> int:
        return len(self._find(request)) * self.block_size

    def adopt(self, request: Request, source: Request | None = None) -> int:
        if request.block_ids:
            raise ValueError(f"request {request.key} already holds {len(request.block_ids)} blocks")
        if source is None:
            found = self._find(request)
            computed = request.capacity = len(found) * self.block_size
        else:
            found = source.block_ids[: -(-source.prompt_len // self.block_size)]
            request.block_hashes = source.block_hashes[: source.prompt_len // self.block_size]
            computed = source.prompt_len - 1
            # Both may write into the last block next, so both must ask for it first.
            request.capacity = source.capacity = 0
        refs = self._refs
        for block in found:
            if not refs[block]:
                del self._cached[block]
                self.num_free -= 1
            refs[block] += 1
        if found:
            request.block_ids = found
            request.num_published = computed // self.block_size
            self._holders.add(request)
        return computed

    def reserve(self, request: Request, end: int) -> list[tuple[int, int]] | None:
        table, size, refs = request.block_ids, self.block_size, self._refs
        needed = -(-end // size)
        rewritten = range(request.num_computed // size, min(needed, len(table)))
        shared = [i for i in rewritten if refs[table[i]] > 1]
        if max(needed - len(table), 0) + len(shared) > self.num_free:
            return None
        for i in rewritten:
            if refs[table[i]] == 1:
                self._unname(table[i])  # a fork outlived its parent, which had filled and published this block
        copies = []
        for i in shared:
            block = self._take()
            copies.append((table[i], block))
            refs[table[i]] -= 1
            table[i] = block
        while len(table) < needed:
            table.append(self._take())
        if table:
            request.capacity = len(table) * size
            self._holders.add(request)
        return copies

    def publish(self, request: Request) -> None:
        first, full = request.num_published, request.num_computed // self.block_size
        if full <= first or not self.enable_prefix_caching:
            return
        chain = self._hasher.extend(request, full)
        for block, digest in zip(request.block_ids[first:full], chain[first:full], strict=True):
            # Content that is already named keeps its first block.
            if digest not in self._by_digest and self._digests[block] is None:
                self._digests[block] = digest
                self._by_digest[digest] = block
        request.num_published = full

    def release(self, request: Request) -> None:
        refs = self._refs
        # The tail goes first, so that of one sequence the tail is evicted before the head it depends on.
        for block in reversed(request.block_ids):
            refs[block] -= 1
            if not refs[block]:
                self.num_free += 1
                if self._digests[block] is None:
                    self._plain.append(block)
                else:
                    self._cached[block] = None
        self._holders.discard(request)
        request.block_ids = []
        request.capacity = request.num_published = 0

    def check(self) -> None:
        self._check_references()
        self._check_free()
        self._check_names()

    # ---- accounting -----------------------------------------------------------------------------------------------------------------

    def usage(self) -> KVUsage:
        used, size = self.num_blocks - self.num_free, self.block_size
        filled: dict[int, int] = {}  # of blocks that are not full for some holder
        for request in self._holders:
            computed, table = request.num_computed, request.block_ids
            for i in range(computed // size, len(table)):
                filled[table[i]] = max(filled.get(table[i], 0), computed - i * size)
        return KVUsage(used, used * size, used * size - sum(size - n for n in filled.values()))

    # ---- blocks ---------------------------------------------------------------------------------------------------------------------

    def _find(self, request: Request) -> list[int]:
        """Blocks of the longest cached prefix; at least one token is left to compute, because its logits are needed."""
        limit = (len(request.token_ids) - 1) // self.block_size
        if limit < 1 or not self._by_digest:
            return []
        found: list[int] = []
        for digest in self._hasher.extend(request, limit)[:limit]:
            block = self._by_digest.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def _take(self) -> int:
        """A block with one reference; the caller has checked ``num_free``."""
        if self._plain:
            block = self._plain.pop()
        elif self._fresh < self.num_blocks:
            block = self._fresh
            self._fresh += 1
        else:
            block, _ = self._cached.popitem(last=False)
            self._unname(block)
        self._refs[block] = 1
        self.num_free -= 1
        return block

    def _unname(self, block: int) -> None:
        """The block is about to hold something else."""
        digest = self._digests[block]
        if digest is not None:
            del self._by_digest[digest]
            self._digests[block] = None

    # ---- invariants -----------------------------------------------------------------------------------------------------------------

    def _check_references(self) -> None:
        counted: Counter[int] = Counter()
        for request in self._holders:
            table, size = request.block_ids, self.block_size
            assert table and len(set(table)) == len(table), f"{request.key}: empty table or a block twice: {table}"
            assert request.num_computed <= len(table) * size, f"{request.key}: {request.num_computed} tokens in {len(table)} blocks"
            assert request.capacity in (0, len(table) * size), f"{request.key}: capacity {request.capacity}, {len(table)} blocks"
            for i in range(request.num_computed // size, request.capacity // size):
                block = table[i]
                assert self._refs[block] == 1, f"{request.key}: would write into shared block {block}"
                assert self._digests[block] is None, f"{request.key}: would write into block {block}, which others may find"
            counted.update(table)
        for block, refs in enumerate(self._refs):
            assert refs == counted[block], f"block {block}: {refs} references, {counted[block]} holders"

    def _check_free(self) -> None:
        free = [*self._plain, *self._cached, *range(self._fresh, self.num_blocks)]
        assert len(free) == len(set(free)) == self.num_free, f"num_free {self.num_free}, the lists hold {len(free)} ({len(set(free))} distinct)"
        assert set(free) == {b for b, refs in enumerate(self._refs) if not refs}, "a free block has references, or an unreferenced one is lost"
        assert all(self._digests[b] is None for b in self._plain), "a findable block lies among the plain ones"
        assert all(self._digests[b] is not None for b in self._cached), "a block without a name lies among the cached ones"
        assert all(self._digests[b] is None for b in range(self._fresh, self.num_blocks)), "a block that was never used has a name"

    def _check_names(self) -> None:
        named = {block: digest for block, digest in enumerate(self._digests) if digest is not None}
        assert {block: digest for digest, block in self._by_digest.items()} == named, "names and blocks are not one to one"
        for request in self._holders:
            full = request.num_computed // self.block_size
            if self.enable_prefix_caching and full:
                chain = self._hasher.extend(request, full)
                for block, digest in zip(request.block_ids[:full], chain[:full], strict=True):
                    assert named.get(block, digest) == digest, f"{request.key}: block {block} has another content's name"
