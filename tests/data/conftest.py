"""Small shards."""

import pytest
from samples import make_members, write_tar


@pytest.fixture
def shards(tmp_path) -> str:
    """Four tar shards of 7, 5, 9 and 6 examples, numbered through."""
    first = 0
    for shard, size in enumerate((7, 5, 9, 6)):
        members = [part for number in range(first, first + size) for part in make_members(number)]
        write_tar(tmp_path / f"train-{shard:05d}.tar", members)
        first += size
    return str(tmp_path / "train-{00000..00003}.tar")
