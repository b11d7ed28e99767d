"""What a job is asked to do, where its files are, and which of its work is done."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from big_align.core.digests import hash_bytes
from big_align.core.errors import put_in_a_line
from big_align.data.precomputed.shard_files import list_differences
from big_align.data.shared import storage
from big_align.prepare import sketch, text_rules
from big_align.prepare.examination import Examination
from big_align.prepare.inputs import CHUNK, Inputs, Stretch
from big_align.prepare.rules import Pair, Rules, draw_order
from big_align.prepare.sampling import draw_pairs
from big_align.prepare.shards import FORMATS, SHARD_SIZE, name_shard

COUNTED = 64  # stretches, from which the number of pairs is estimated
FORMAT = 3  # of the files of a job: with another one the job begins again


@dataclasses.dataclass(frozen=True)
class JobPlan:
    """A job. It is pickled for every worker.

    What is found out about examples is kept in `facts`, and what is decided about them in
    `decisions`, under names that change with whatever they depend on. So a job that was killed
    continues, and one with other numbers reuses what it can.
    """

    inputs: Inputs  # the raw pairs
    output: str  # the folder of shards, statistics and report
    work: str  # the folder of intermediate files
    examination: Examination = Examination()
    rules: Rules = Rules()
    listed: str = ""  # a file of keys to drop: a JSON object a line, with `key` and `reason`
    seed: int = 0  # of the order of examples, and of all that is drawn
    shard_size: int = SHARD_SIZE  # the most examples of a shard
    sample: int = 0  # pairs that a dry run looks at; 0 for all
    chunk: int = CHUNK  # examples of a piece of work
    keep: tuple[str, ...] = ()  # other columns of Parquet files, or members of tar shards
    sketch_width: int = 0  # cells of a row of sketches of tokens and texts; 0 counts exactly
    shard_format: str = "tar"  # one of `shards.FORMATS`

    # The three folders are asked for with every stretch; what they are named by may be large.
    @functools.cached_property
    def facts(self) -> str:
        """The folder of what is found out about examples; the rules do not change it."""
        what = [dataclasses.asdict(self.inputs), dataclasses.asdict(self.examination), self.chunk]
        what.append([self.sample, self.seed] if self.sample else [])
        what += [sources] if (sources := self.examination.sources) else []
        return storage.join(self.work, f"facts-{_digest([FORMAT, *what])}")

    @functools.cached_property
    def decisions(self) -> str:
        """The folder of what is decided about them."""
        return storage.join(self.work, f"decisions-{_digest(self.settings())}")

    def settings(self) -> dict[str, Any]:
        """Returns whatever the shards depend on, as JSON holds it."""
        listed = (storage.read_bytes(self.listed) if self.listed else None) or b""
        settings = dataclasses.asdict(self) | {"listed": _digest(listed.hex()), "format": FORMAT}
        settings |= {"sources": sources} if (sources := self.examination.sources) else {}
        del settings["output"], settings["work"]
        return json.loads(json.dumps(settings))

    def draw(self, file: int, row: int) -> bytes:
        """Returns the place of an example in the order of all, as eight bytes."""
        return draw_order(self.seed, self.inputs.key(file, row))

    def sample_languages(self, rates: Mapping[str, float]) -> Callable[[Pair], bool]:
        """Returns a function that decides whether a pair is kept, by the rate of its language."""
        return draw_pairs(rates, self.seed, self.inputs.key)

    def stretch_path(self, kind: str, stretch: Stretch) -> str:
        """Returns the file about a stretch of `kind`: `facts` or `broken`."""
        return storage.join(self.facts, kind, f"{stretch.name}.jsonl")

    def shard_path(self, shard: int) -> str:
        return storage.join(self.output, name_shard(shard, self.shard_format))

    def result(self, name: str) -> str:
        """Returns a file about the job in its output; a dry run has another."""
        return storage.join(self.output, f"dry_run_{name}" if self.sample else name)

    def list_shards(self) -> list[str]:
        """Returns the names of the shards in the output, of any format."""
        names = storage.list_names(self.output)
        return [name for name in names if any(is_shard(name, kind) for kind in FORMATS)]

    def file_path(self, file: int) -> str:
        return storage.join(self.facts, "files", f"{file:06d}.json")

    def read_files(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the number of each input file that has been opened, and what is known of it."""
        for name in storage.list_names(storage.join(self.facts, "files")):
            file = int(name.removesuffix(".json"))
            yield file, storage.read_json(self.file_path(file))

    def list_stretches(self) -> list[Stretch]:
        """Returns the stretches of all input files that have been opened, in order."""
        return sorted(Stretch(*one) for _, about in self.read_files() for one in about["stretches"])

    def estimate_pairs(self) -> int:
        """Returns about how many pairs there are, from some of the stretches."""
        stretches = self.list_stretches()
        some = stretches[:: max(1, len(stretches) // COUNTED)]
        found = sum(1 for stretch in some for _ in self.read_pairs(stretch))
        return found * len(stretches) // max(len(some), 1)

    def read_pairs(self, stretch: Stretch) -> Iterator[tuple[bytes, Pair]]:
        """Yields the pairs of a stretch, each after the bytes that identify its image."""
        for found in storage.read_lines(self.stretch_path("facts", stretch)):
            image = bytes.fromhex(found["id"])
            yield from ((image, pair) for pair in make_pairs(stretch.file, found))

    @functools.cached_property
    def counted(self) -> str:
        """The folder of what is counted over all pairs."""
        sketched = f"-{self.sketch_width}" * bool(self.sketch_width)
        return storage.join(self.facts, f"counts{sketched}")

    def parts_path(self, folder: str, parts: int) -> str:
        """Returns the folder of what passes between groupings in so many parts."""
        return storage.join(folder, f"parts-{parts}")

    def read_sketch(self, name: str) -> sketch.CountMinSketch:
        """Returns how often each of the `tokens` or `texts` occurs in the raw data, or more."""
        return sketch.read_sketch(storage.join(self.counted, f"{name}.npy"))

    def token_rule(self) -> text_rules.TokenRule | None:
        """Returns which tokens are rare, once they are counted."""
        found = storage.read_json(storage.join(self.counted, "tokens.json")) or {}
        counts: dict[str, dict[int, int]] = {"1": {}, "2": {}}
        for name, kinds in found.items():
            length, count = name.split()
            counts[length][int(count)] = kinds
        rules = self.rules
        return text_rules.choose_token_rule(
            counts["1"], counts["2"], rules.tokens, rules.scale_tokens, bool(self.sketch_width)
        )


def is_shard(name: str, shard_format: str) -> bool:
    """Returns whether a file of the output is a shard."""
    head, _, tail = name_shard("*", shard_format).partition("*")
    number = name.removeprefix(head).removesuffix(tail)
    return name == f"{head}{number}{tail}" and number.isdecimal()


def make_pairs(file: int, found: dict[str, Any]) -> list[Pair]:
    """Returns the pairs of an example; without texts it is one pair with an empty text."""
    languages = found["languages"] or [""] * len(found["texts"])
    texts = list(zip(range(len(found["texts"])), found["texts"], languages, strict=True))
    return [
        Pair(file, found["row"], place, text, found["width"], found["height"], found["bytes"],
             found["flag"], language, tuple(found["labels"]))
        for place, text, language in texts or [(-1, "", "")]
    ]  # fmt: skip


DESCRIBED = {"listed": "what the file of --drop says", "stamps": "the size or time of a file",
              "stems": "the names of files", "format": "the version of this tool"}  # fmt: skip
"""Settings whose values say nothing to people, and what is said of them instead."""


def tell_difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Says which settings differ."""
    told = list_differences(old, new, DESCRIBED)
    if DESCRIBED["stems"] in str(told) or "inputs.paths" in str(told):  # stamps then differ too
        told = [t for t in told if not t.startswith((DESCRIBED["stems"], DESCRIBED["stamps"]))]
    return put_in_a_line("; ".join(told))


def _digest(value: Any) -> str:
    return hash_bytes(json.dumps(value, sort_keys=True)).hex()
