"""Names for cached prefixes: a chained, keyed hash of full blocks.

The digest of block i covers the salt and every token of blocks 0..i, so equal digests mean equal prefixes. BLAKE2b (RFC 7693) in keyed
mode with a secret of this process: who does not know the secret can neither build collisions nor predict names. The salt separates tenants,
so that one cannot learn from timing what another has asked.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.core.request import Request

DIGEST_BYTES = 16
MAX_SECRET_BYTES = blake2b.MAX_KEY_SIZE


class PrefixHasher:
    """Extends ``request.block_hashes``. ``secret``: 1 to 64 bytes, drawn at random when None."""

    __slots__ = ("_block_size", "_pack", "_secret")

    def __init__(self, block_size: int, secret: bytes | None = None) -> None:
        secret = os.urandom(32) if secret is None else secret
        if not 1 <= len(secret) <= MAX_SECRET_BYTES:
            raise ConfigError(f"the prefix-cache secret must have 1 to {MAX_SECRET_BYTES} bytes, got {len(secret)}")
        self._secret = secret
        self._block_size = block_size
        self._pack = Struct(f"<{block_size}q").pack

    def extend(self, request: Request, num_blocks: int) -> list[bytes]:
        """The request's chain, at least ``num_blocks`` long (all of them full of known tokens); computed once and kept on the request."""
        hashes, tokens, size = request.block_hashes, request.token_ids, self._block_size
        if len(hashes) >= num_blocks:
            return hashes
        last = hashes[-1] if hashes else self._root(request.cache_salt)
        for begin in range(len(hashes) * size, num_blocks * size, size):
            digest = blake2b(last, digest_size=DIGEST_BYTES, key=self._secret)
            digest.update(self._pack(*tokens[begin : begin + size]))
            last = digest.digest()
            hashes.append(last)
        return hashes

    def _root(self, salt: str) -> bytes:
        """Start of the chain of one tenant; ``person`` keeps it apart from the digests of blocks."""
        return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, key=self._secret, person=b"salt").digest()
