"""Pieces of work of a job, each of which leaves its files whole or not at all."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from big_align.core.errors import UserError, pass_unreachable, put_in_a_line, tell_in_a_line
from big_align.data import boundary, files
from big_align.data.column_values import spell_halves
from big_align.data.examples import BLANK
from big_align.data.json_texts import parse_json
from big_align.data.loading.broken import name_kind
from big_align.data.shared import storage
from big_align.prepare import inputs as inputs_of
from big_align.prepare import shards
from big_align.prepare.examination import encode_member, examine_stretch
from big_align.prepare.inputs import Stretch
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import judge_length
from big_align.prepare.sketch import CountMinSketch, write_sketch
from big_align.prepare.text_rules import identify_text, name_tokens, split_unigrams

ASPECT_MAX, UNIGRAMS_MAX = 20, 100  # of histograms; anything above is counted with the last
ROWS_LISTED = 100  # rows without an image of a file that the quarantine names


def open_file(file: int, plan: JobPlan) -> Iterator[Stretch]:
    """Yields the stretches of an input file, and notes what it lost or why it cannot be opened."""
    path = plan.file_path(file)
    about = storage.read_json(path)
    if about is None:
        stretches, broken, classes = [], [], []
        name = plan.inputs.paths[file]
        try:
            source = plan.inputs.open(file)
            rows = inputs_of.FileRows(source)
            classes = list(source.class_names or [])
            if plan.sample:
                read = min(len(plan.inputs.paths), inputs_of.SAMPLED_FILES)
                wanted = -(-plan.sample // read)
                stretches = inputs_of.sample_stretches(file, rows.count, wanted, plan.seed)
            else:
                stretches = inputs_of.list_stretches(file, rows.count, plan.chunk)
            if lines := getattr(source, "bad_lines", {}):
                where = {"input": name, "count": 1}
                broken += [where | {"line": n, "reason": why} for n, why in lines.items()]
            elif lost := int(source.broken.sum()):
                reason = "; ".join(getattr(source, "faults", ())) or "a part of them is missing"
                broken.append({"input": name, "count": lost, "reason": reason})
            elif empty := plan.inputs.find_empty(file, rows):
                about = {"count": len(empty), "rows": empty[:ROWS_LISTED]}
                broken.append({"input": name, **about, "reason": "rows without an image"})
        except (ValueError, OSError) as error:
            pass_unreachable(error)  # the file may be whole
            reason = inputs_of.rename_flags(tell_in_a_line(error)).removeprefix("--input: ")
            broken = [{"input": name, "count": 1, "whole_file": True, "reason": reason}]
        about = {"stretches": stretches, "broken": broken, "classes": classes}
        storage.write_json(path, about)
    yield from (Stretch(*stretch) for stretch in about["stretches"])


def examine(stretch: tuple[int, int, int], plan: JobPlan) -> Stretch:
    """Examines the examples of a stretch, unless that was done, and notes what it found."""
    stretch = Stretch(*stretch)
    path = plan.stretch_path("facts", stretch)
    if not files.exists(path):
        facts, broken = examine_stretch(plan.inputs, stretch, plan.examination)
        storage.write_lines(plan.stretch_path("broken", stretch), broken)
        storage.write_lines(path, facts)  # comes last: it means that the stretch is done
    return stretch


def read_texts(stretch: Stretch, plan: JobPlan) -> list[str]:
    return [pair.text for _, pair in plan.read_pairs(stretch) if pair.place >= 0]


def read_pairs(stretch: Stretch, plan: JobPlan) -> Iterator[tuple[bytes, tuple]]:
    """Yields pairs with the rules applied about lengths and, if a sketch counted them, tokens."""
    rule = plan.token_rule() if plan.sketch_width else None
    for group, pair in plan.read_pairs(stretch):
        words = split_unigrams(pair.text)
        failed = judge_length(len(words), plan.rules)
        if rule:
            counts = plan.read_sketch("tokens").estimate(name_tokens(words, rule.bigrams))
            failed += ["rare"] * bool((counts < rule.min_count).any())
        yield group, tuple(pair._replace(failed=tuple(failed)))


def sketch_texts(texts: list[str], width: int, tokens: bool) -> dict[str, CountMinSketch]:
    """Returns sketches of the texts of a stretch and, if asked for, of their tokens."""
    made = {"texts": CountMinSketch(width)}
    made["texts"].add(Counter(map(identify_text, texts)))
    if tokens:
        made["tokens"] = CountMinSketch(width)
        words = map(split_unigrams, texts)
        made["tokens"].add(Counter(token for each in words for token in name_tokens(each, True)))
    return made


def write_sketches(sketches: dict[str, CountMinSketch], plan: JobPlan) -> None:
    """Writes the sketches of all texts, and how exact they are."""
    for name, made in sketches.items():
        write_sketch(storage.join(plan.counted, f"{name}.npy"), made)
    about = {
        name: {"counted": made.total, "error": made.error(), "confidence": made.confidence()}
        for name, made in sketches.items()
    }
    storage.write_json(storage.join(plan.counted, "sketches.json"), about)


def is_suspect(found: tuple[bytes, Any], plan: JobPlan) -> bool:
    """Returns whether a text, given by its id, may belong to more images than are allowed."""
    most = plan.rules.max_images
    return most is not None and bool(plan.read_sketch("texts").estimate([found[0]])[0] > most)


def measure(stretch: Stretch, plan: JobPlan) -> dict[str, int]:
    """Returns the histograms of a stretch: `side 224` is how many images have this shorter side."""
    counts: Counter = Counter()
    for found in storage.read_lines(plan.stretch_path("facts", stretch)):
        short, long = sorted((found["width"], found["height"]))
        counts["images"] += 1
        counts[f"side {short}"] += 1
        counts[f"aspect {min(10 * long // max(short, 1), 10 * ASPECT_MAX)}"] += 1
        for text in found["texts"]:
            counts[f"unigrams {min(len(split_unigrams(text)), UNIGRAMS_MAX)}"] += 1
    for broken in storage.read_lines(plan.stretch_path("broken", stretch)):
        counts["broken"] += 1
        counts[f"kind {name_kind(broken['reason'])}"] += 1
    return dict(counts)


def read_listed(path: str) -> dict[str, str]:
    """Returns the keys to drop, with their reasons, from a file of JSON lines; or UserError."""
    found: dict[str, str] = {}
    for number, line in enumerate(files.read_text(path, "--drop=").split("\n"), start=1):
        line = line.strip(BLANK)  # lists that were joined may have a byte-order mark before each
        if not line:
            continue
        try:
            about = parse_json(line)
            key, reason = about["key"], about.get("reason", "listed")
            if not (isinstance(key, str) and isinstance(reason, str)):
                raise TypeError("they must be texts")
            # no key of ours has half of a surrogate pair, which Beam's coders refuse
            key, reason = map(spell_halves, (key, reason))
            found[key] = reason
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{path}, line {number}: each line is a JSON object with two texts, `key` "
                f'and `reason`, as in {{"key": "00003-000000017", "reason": "near-duplicate"}}'
            ) from error
    return found


def place_example(
    ranked: tuple[int, int, tuple], plan: JobPlan
) -> tuple[tuple[int, int], tuple[int, int, int, Any]]:
    """Returns the stretch of an example that is written, and its row, shard, place and texts."""
    rank, total, (_, file, row, size, about) = ranked
    shard, place = shards.find_place(rank, total, shards.count_shards(total, plan.shard_size))
    return (file, row // plan.chunk * plan.chunk), (row, shard, place, [*size, *about])


def write_placed(group: tuple[tuple[int, int], Any], plan: JobPlan) -> None:
    """Notes which rows of a stretch are written, and where."""
    (file, start), rows = group
    name = f"{Stretch(file, start, 0).name}.jsonl"
    lines = [list(row) for row in sorted(rows, key=lambda row: row[0])]
    storage.write_lines(storage.join(plan.decisions, "rows", name), lines)


def read_members(
    stretch: Stretch, plan: JobPlan, wanted: frozenset[int]
) -> Iterator[tuple[int, tuple]]:
    """Yields a stretch's examples for some shards, read again; they must be what they were."""
    lines = storage.read_lines(storage.join(plan.decisions, "rows", f"{stretch.name}.jsonl"), True)
    chosen = [line for line in lines if line[1] in wanted]
    if not chosen:
        return
    source = plan.inputs.open(stretch.file)
    rows = inputs_of.FileRows(source)
    for row, shard, place, (width, height, size, texts, languages, labels, merged) in chosen:
        at = rows.find(row)
        with boundary.name_example(source, *at):
            example = source.read(*at)
            image, ending = encode_member(example.image)
        same = len(example.image) == size if isinstance(example.image, bytes) else True
        if not same:
            raise UserError(
                f"{source.name(*at)} has {len(image)} bytes, and {size} when it was examined: the "
                f"input has changed; delete {plan.work} and start again"
            )
        about = {
            "captions": texts,
            "origin": {"input": plan.inputs.paths[stretch.file], "row": row, "key": example.key},
            "width": width,
            "height": height,
        }
        if plan.keep:
            about |= {"columns": read_kept(source, at, plan.keep)}
        about |= {"languages": languages} if any(languages) else {}
        about |= {"labels": labels} if labels else {}
        about |= {"merged": [plan.inputs.key(*each) for each in merged]} if merged else {}
        key = plan.inputs.key(stretch.file, row)
        # Beam's coders refuse names of files that are not UTF-8; JSON escapes them
        yield shard, (place, key, ending, image, json.dumps(about))


def list_classes(plan: JobPlan) -> list[str]:
    """Returns the names of labels, if any, which must be the same in all files that can be read."""
    found: dict[tuple[str, ...], str] = {}  # a file of each choice of names
    for file, about in plan.read_files():
        if classes := about.get("classes"):
            found.setdefault(tuple(classes), plan.inputs.paths[file])
    if len(found) > 1:
        (one, path), (other, second) = list(found.items())[:2]
        strange = sorted(set(one) ^ set(other))
        differ = f"{strange[0]!r} is in one of them" if strange else "they are in another order"
        raise UserError(
            f"--input: labels are names, which each file numbers by itself, and {path} and "
            f"{second} do not have the same ones ({differ}): write numbers, or all rows into one "
            "file"
        )
    return list(next(iter(found), ()))


def read_kept(source: Any, at: tuple[int, int], names: tuple[str, ...]) -> dict[str, Any]:
    """Returns other columns of an example, as JSON holds them; UserError if there are none."""
    if not hasattr(source, "read_columns"):
        raise UserError(
            "--keep is about columns of Parquet files and members of tar shards, and the input is "
            "something else"
        )
    try:
        values = source.read_columns(*at, names)
    except (ValueError, LookupError) as error:
        told = put_in_a_line(str(error))
        raise UserError(f"--keep={','.join(names)}: {told}") from error
    return {name: _make_plain(value) for name, value in zip(names, values, strict=True)}


def _make_plain(value: Any) -> Any:
    """Returns a value as JSON holds it; what it has no form for becomes a text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (str, int, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [_make_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _make_plain(each) for key, each in value.items()}
    return str(value)


def write_shard(group: tuple[int, Any], plan: JobPlan, examples: int) -> int:
    """Writes a shard of a job that writes so many examples; UserError if it lacks some of them."""
    shard, members = group
    made = [shards.Member(*rest, json.loads(about)) for *rest, about in members]
    count = shards.count_members(shard, examples, shards.count_shards(examples, plan.shard_size))
    if len(made) != count:  # another job may have removed what it had noted of them
        path = plan.shard_path(shard)
        raise UserError(f"{path} would have {len(made)} of its {count} examples; start again")
    shards.write_shard(plan.shard_path(shard), made, plan.shard_format)
    return shard


def write_line(value: Any) -> bytes:
    return shards.write_json(value) + b"\n"
