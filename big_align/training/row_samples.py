"""Random samples of a table's rows, by a key, the same however the rows are split over devices."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from big_align.parallel.shards import locate_rows

_WHOLE = 2**31


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Samples each row with the same probability, and so many rows at a time in every part.

    The sample is stratified: strata of 1 / `ratio` rows begin at a random place, and one row of
    each is taken. If 1 / `ratio` is no integer, strata are shorter, and evenly spread ones are
    passed over. Above one half, the rows that are left out are chosen in this way. So any n
    successive rows have n times `ratio` in the sample, give or take less than three.
    """

    num_rows: int
    ratio: float  # the probability of a row, in [0, 1]

    @property
    def _rarer(self) -> float:
        return min(self.ratio, 1 - self.ratio)

    @property
    def _length(self) -> int:
        """Rows of a stratum."""
        return int(1 / max(self._rarer, 1 / self.num_rows))

    @property
    def _share(self) -> int:
        """The probability that a stratum's row is taken, in units of 2^-31."""
        return round(self._rarer * self._length * _WHOLE)

    def _count_strata(self, local: int) -> int:
        """Returns how many strata have any of `local` successive rows at most."""
        return (local + self._length - 2) // self._length + 1

    def bound(self, local: int) -> int:
        """Returns a number of rows that a sample never exceeds in `local` successive ones."""
        if self.ratio > 0.5:
            return local
        return min(local, -(-self._share * self._count_strata(local) // _WHOLE))

    def sample(self, rng: PRNGKeyArray, first: Int[Array, ""], local: int) -> Int[Array, " q"]:
        """Samples rows of a shard of `local` rows; those from `num_rows` on are padding.

        The key is the same for all shards. Returns places in the shard, ascending; `local` beyond
        the last one.
        """
        start_rng, phase_rng, row_rng = jax.random.split(rng, 3)
        start = jax.random.randint(start_rng, (), 0, self._length)
        strata = jnp.arange(self._count_strata(local), dtype=jnp.int32)
        strata += (first + start) // self._length
        # A phase that grows by the share, modulo 1, is below the share once in 1 / share steps. In
        # integers it is exact, and uniform for every stratum.
        phase = jnp.uint32(self._share) * strata.astype(jnp.uint32) + jax.random.bits(phase_rng)
        taken = (phase & jnp.uint32(_WHOLE - 1)) < jnp.uint32(self._share)

        def choose(stratum: Int[Array, ""]) -> Int[Array, ""]:
            return jax.random.randint(jax.random.fold_in(row_rng, stratum), (), 0, self._length)

        rows = strata * self._length - start + jax.vmap(choose)(strata)
        rows = jnp.where(taken & (rows < self.num_rows), rows, -1)
        places = locate_rows(rows, first, local)
        if self.ratio > 0.5:
            real = jnp.arange(local) + first < self.num_rows
            places = jnp.where(real.at[places].set(False, mode="drop"), jnp.arange(local), local)
        kept = jnp.flatnonzero(places < local, size=self.bound(local), fill_value=len(places))
        return places.at[kept].get(mode="fill", fill_value=local).astype(jnp.int32)
