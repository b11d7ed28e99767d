"""What a config says about the loader of the training data, and about features in its place."""

import dataclasses

from big_align.core.errors import FieldError, check_at_least
from big_align.data.images.decoding import MAX_PIXELS
from big_align.data.loading.broken import check_fraction

SHARED = ("num_threads", "num_processes", "prefetch", "pipeline")
"""Settings of the whole batch, which the parts of a mixture share."""


WINDOW = 2**17
"""Examples that are shuffled among each other by default."""


@dataclasses.dataclass(frozen=True)
class LoaderSettings:
    """The fields of `config.data`, or of a part of a mixture, that the parts of a loader take.

    Attributes:
      transform: image operations, one after another, as in "resize(346)|random_crop(289)".
      window: neighbors that are shuffled among each other, after the order of shards; all of them
        make a full shuffle.
      max_broken_fraction: the fraction of broken examples above which the run stops.
      max_pixels: an image with more is broken, and is not decoded: a small file can hold enough to
        exhaust memory.
      num_threads: threads that fill batches, in each process; None is one per core, or one in each
        process if several fill batches.
      num_processes: processes that fill batches; with 0 only the threads of this one do, and None
        depends on the machine: 0 up to eight cores, and one per core above.
      prefetch: batches that are filled ahead; each is held in memory.
      captions_per_image: different texts per visit; with 0 no texts are read.
      views_per_image: differently augmented images per visit.
      templates: texts of a class, with `{}` for its name and perhaps `{description}`; None takes
        those of the class list.
      captions_used: how many of an example's captions exist for training; None for all.
      language_temperature: T; draws the language of a caption first, with p ~ n^(1/T) for a
        language with n captions in all, and then the caption: 1 draws languages as the data have
        them, inf all alike. None draws captions regardless of their language.
      hold_out: the fraction of the examples that is kept out of training, by a hash of their keys;
        evaluators have it as the source `held_out`.
      pipeline: "module:function" that makes the batches as a `tf.data.Dataset`; None uses the
        loader.
    """

    transform: str
    window: int = WINDOW
    max_broken_fraction: float = 0.01
    max_pixels: int = MAX_PIXELS
    num_threads: int | None = None
    num_processes: int | None = None
    prefetch: int = 4
    captions_per_image: int = 1
    views_per_image: int = 1
    templates: tuple[str, ...] | None = None
    captions_used: int | None = None
    language_temperature: float | None = None
    hold_out: float = 0.0
    pipeline: str | None = None

    def __post_init__(self):
        at_least_1 = "window", "prefetch", "views_per_image", "max_pixels", "num_threads"
        check_at_least(1, **{name: getattr(self, name) for name in at_least_1})
        at_least_0 = "captions_per_image", "num_processes"
        check_at_least(0, **{name: getattr(self, name) for name in at_least_0})
        check_at_least(max(1, self.captions_per_image), captions_used=self.captions_used)
        check_fraction(self.max_broken_fraction)
        if not 0 <= self.hold_out < 1:
            message = f"hold_out = {self.hold_out} is not a fraction from 0 to below 1"
            raise FieldError(message, hold_out=0.05)


@dataclasses.dataclass(frozen=True)
class CachedFeatures:
    """`config.cached_features`.

    Attributes:
      towers: locked towers whose features of the training data are computed once: "image", "text"
        or both.
      folder: where they are kept, for other runs too; None for the folder `features` of the
        workdir.
      dtype: the type of the kept features, "float32" or "float16".
    """

    towers: tuple[str, ...] = ()
    folder: str | None = None
    dtype: str = "float32"

    def __post_init__(self):
        if strange := sorted(set(self.towers) - {"image", "text"}):
            raise ValueError(f"towers has {strange[0]!r}; there are image and text")
        if self.dtype not in ("float32", "float16"):
            raise ValueError(f"dtype = {self.dtype!r} is neither 'float32' nor 'float16'")
