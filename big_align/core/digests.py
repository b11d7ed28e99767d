"""Digests: a text that says whether something is the same, and a few bytes in place of much."""

import hashlib
import json
from typing import Any


def fingerprint(content: Any, digits: int = 64) -> str:
    """Returns the first hexadecimal digits of the SHA-256 of bytes, a text, or what JSON holds."""
    if not isinstance(content, bytes | memoryview):
        text = content if isinstance(content, str) else json.dumps(content)
        content = text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).hexdigest()[:digits]


def hash_bytes(content: Any, size: int = 8) -> bytes:
    """Returns the BLAKE2b of a text, which may have halves of surrogate pairs, or of a buffer."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return hashlib.blake2b(data, digest_size=size).digest()
