"""Content ids, derived seeds and shard numbers: the same input gives the same value on every host and worker."""

import json
from hashlib import blake2b
from typing import Any


def canonical_json(value: Any) -> bytes:
    """`value` as UTF-8 JSON with sorted keys and no spaces. NaN and infinities raise ValueError."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def content_id(kind: str, *parts: Any) -> str:
    """`kind` + "_" + 24 hex digits of blake2b over the canonical JSON of `parts`."""
    return f"{kind}_{blake2b(canonical_json(parts), digest_size=12).hexdigest()}"


def derive_seed(*parts: Any) -> int:
    """A seed in [0, 2**63) that depends on `parts` alone."""
    return int.from_bytes(blake2b(canonical_json(parts), digest_size=8).digest(), "big") >> 1


def shard_of(key: str, shards: int) -> int:
    """The shard in [0, shards) that a row with this key belongs to."""
    return derive_seed("shard", key) % shards
