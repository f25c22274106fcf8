"""The hash chain, against a plain re-computation with hashlib."""

from __future__ import annotations

import hashlib
import struct

from octavo.core.kv.prefix import PrefixHasher
from tests.core.helpers import make_request


def chain(tokens: list[int], block_size: int, secret: bytes, salt: str) -> list[bytes]:
    last = hashlib.blake2b(salt.encode(), digest_size=16, key=secret, person=b"salt").digest()
    out = []
    for i in range(len(tokens) // block_size):
        block = tokens[i * block_size : (i + 1) * block_size]
        last = hashlib.blake2b(last + b"".join(struct.pack("<q", t) for t in block), digest_size=16, key=secret).digest()
        out.append(last)
    return out


def test_chain_equals_the_definition_and_is_extended_lazily() -> None:
    hasher = PrefixHasher(4, b"secret")
    request = make_request(length=11, cache_salt="tenant")
    expected = chain(request.token_ids, 4, b"secret", "tenant")
    assert hasher.extend(request, 1) == expected[:1]
    assert hasher.extend(request, 2) == expected == request.block_hashes
    request.token_ids.append(2**31 - 1)
    assert hasher.extend(request, 3) == chain(request.token_ids, 4, b"secret", "tenant")
    assert len(hasher.extend(request, 1)) == 3


def test_every_earlier_token_the_secret_and_the_salt_matter() -> None:
    def last(tokens: list[int], secret: bytes = b"s", salt: str = "") -> bytes:
        return PrefixHasher(2, secret).extend(make_request(tokens=tokens, cache_salt=salt), 2)[1]

    base = last([1, 2, 3, 4])
    assert base == last([1, 2, 3, 4]) and len(base) == 16
    others = [last([9, 2, 3, 4]), last([1, 2, 4, 3]), last([3, 4, 1, 2]), last([1, 2, 3, 4], b"t"), last([1, 2, 3, 4], salt="x")]
    assert len({base, *others}) == 6


def test_default_secret_differs_between_caches() -> None:
    request, other = make_request(length=4), make_request(length=4)
    assert PrefixHasher(4).extend(request, 1) != PrefixHasher(4).extend(other, 1)


def test_salt_may_be_any_string() -> None:
    assert len(PrefixHasher(4, b"s").extend(make_request(length=4, cache_salt="\ud800é" * 100), 1)) == 1
