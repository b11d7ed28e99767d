"""A job from its flags to its report: what is done is not done again."""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from big_align.core.errors import UserError, pass_unreachable, put_in_a_line
from big_align.core.progress import make_bar
from big_align.data import boundary
from big_align.data.examples import BrokenExample, Source, language_of
from big_align.data.files import exists
from big_align.data.shared import storage
from big_align.prepare import steps
from big_align.prepare.examination import examine_example
from big_align.prepare.inputs import SAMPLED_FILES, rename_flags
from big_align.prepare.page import write_report
from big_align.prepare.plan import JobPlan, is_shard, tell_difference
from big_align.prepare.rules import ORDER, draw_order
from big_align.prepare.sampling import NO_LANGUAGE
from big_align.prepare.shards import name_shard
from big_align.prepare.statistics import make_statistics

PART_BYTES = 2**32  # that is grouped at a time by a runner that holds it in memory
PAIR_BYTES = 2**13  # of that for a pair, or an example beside its image, in all processes
IMAGE_COPIES = 13  # in all processes, of the images of shards that are grouped
POLL = 0.5  # seconds
POLLING = 0.02  # of the time goes into it, at most
CHECKED = 100  # examples, of which one must have what is kept
TRIED = 10  # examples that are given to the functions of the user
IN_MEMORY = ("DirectRunner", "BundleBasedDirectRunner", "FnApiRunner")
"""Runners that hold in memory whatever is grouped."""
INSTALL = "Apache Beam is not installed, which prepares data: pip install '.[prepare]'"


def import_pipelines() -> Any:
    """Imports the pipelines; raises UserError if Beam is not installed."""
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))  # about what it could do with packages of clouds
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise UserError(f"{INSTALL} ({put_in_a_line(str(error))})") from error
    finally:
        logging.disable(level)
    from big_align.prepare.on_beam import pipelines

    return pipelines


def run(plan: JobPlan, options: Any, part_bytes: int = PART_BYTES) -> dict[str, Any]:
    """Runs a job, or the rest of it, with Beam's options; returns its statistics.

    `finished_before` is among them if there was nothing to do. It is a UserError if the output
    belongs to another job, another process writes into it, or nothing could be read. Runners that
    hold in memory what is grouped get about `part_bytes` of it at a time.
    """
    pipelines = import_pipelines()
    plan.examination.load()
    if plan.listed:
        steps.read_listed(plan.listed)
    settings = plan.settings()
    done = None if plan.sample else _check_output(plan, settings)
    if done:
        return done | {"finished_before": True}
    alone = contextlib.nullcontext() if plan.sample else storage.own_folder(plan.output)
    with alone:
        return _run(plan, options, pipelines, settings, part_bytes)


def _run(
    plan: JobPlan, options: Any, pipelines: Any, settings: dict[str, Any], part_bytes: int
) -> dict[str, Any]:
    """Runs what `run` has to run, alone in its output if that is on this machine."""
    files = list(range(len(plan.inputs.paths)))
    if plan.sample:
        files.sort(key=lambda n: draw_order(plan.seed, plan.inputs.stems[n]))
        files = sorted(files[:SAMPLED_FILES])
    _open_first(plan, files)
    if not plan.sample:
        storage.write_json(storage.join(plan.output, "begun.json"), settings)

    def count_examined() -> tuple[int, int]:
        done = storage.list_names(storage.join(plan.facts, "facts"))
        return len(done), len(plan.list_stretches())

    if not exists(storage.join(plan.facts, "done.json")):
        with _show_progress("examine", count_examined):
            run_pipeline(pipelines.examine, plan, files, options)
        storage.write_json(storage.join(plan.facts, "done.json"), {"files": len(files)})
    classes = steps.list_classes(plan)
    counted = plan.rules.tokens is not None or plan.sketch_width
    grouped = [(plan.counted, pipelines.count)] * bool(counted)
    for folder, pipeline in (*grouped, (plan.decisions, pipelines.decide)):
        if not exists(storage.join(folder, "done.json")):
            parts = _count_parts(plan.estimate_pairs() * PAIR_BYTES, options, part_bytes)
            run_pipeline(pipeline, plan, parts, options)
            storage.write_json(storage.join(folder, "done.json"), settings)
            storage.remove(plan.parts_path(folder, parts))
    statistics = make_statistics(plan)
    if not plan.sample:
        _check_still_ours(plan, settings)
        _write_shards(plan, pipelines, options, statistics, part_bytes)
    write_quarantine(plan)
    if classes and not plan.sample:
        storage.write_text(storage.join(plan.output, "classes.txt"), "\n".join([*classes, ""]))
    write_report(plan, statistics)
    storage.write_json(plan.result("statistics.json"), statistics)
    if not plan.sample:
        storage.write_json(storage.join(plan.output, "settings.json"), settings)
        storage.remove_unfinished(plan.output)
    return statistics


def _holds_groups(options: Any) -> bool:
    """Returns whether the runner holds in memory what it groups."""
    runner = options.get_all_options().get("runner") or "DirectRunner"
    return runner.rpartition(".")[2] in IN_MEMORY


def _count_parts(size: int, options: Any, part_bytes: int) -> int:
    """Returns in how many parts something is grouped that takes so many bytes in memory."""
    return max(1, -(-size // part_bytes)) if _holds_groups(options) else 1


def _check_still_ours(plan: JobPlan, settings: dict[str, Any]) -> None:
    """Checks that no other job has begun in the output, and none has removed what this one needs.

    A lock does not keep out a job on another machine.
    """
    begun = storage.read_json(storage.join(plan.output, "begun.json"))
    if begun != settings or not any(plan.read_files()):
        raise UserError(
            f"{plan.output}: another job has worked in this output at the same time; run one of "
            "them again, alone"
        )


def _check_output(plan: JobPlan, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the statistics of a job all of whose shards are there; refuses another's output."""
    begun = storage.read_json(storage.join(plan.output, "begun.json"))
    if begun != settings and plan.list_shards():
        told = "" if begun is None else f" ({tell_difference(begun, settings)})"
        raise UserError(
            f"{plan.output} has shards that were made with other settings{told}; choose another "
            "--output, or delete it (--work keeps what was examined)"
        )
    if begun is None or storage.read_json(storage.join(plan.output, "settings.json")) != settings:
        return None
    done = storage.read_json(storage.join(plan.output, "statistics.json"))
    return None if done is None or _list_missing(done["shards"], plan) else done


def _open_first(plan: JobPlan, files: list[int]) -> None:
    """Opens the first file that can be opened: if none can, the flags are wrong, not the files."""
    first = None
    for file in files:
        try:
            source = plan.inputs.open(file)
        except (ValueError, OSError) as error:
            pass_unreachable(error)
            first = first or error
            continue
        if source.shard_sizes.sum():
            _check_kept(source, plan.keep)
            _check_languages(source, plan)
            _check_functions(source, plan)
        return
    told = rename_flags(put_in_a_line(str(first)))
    raise UserError(f"no file of --input can be read; of the first, {told}") from first


def _list_checked(source: Source) -> list[tuple[int, int]]:
    """Returns the examples that are looked at before a job begins: shard and index of each."""
    shard = int(source.shard_sizes.argmax())
    return [(shard, index) for index in range(min(CHECKED, int(source.shard_sizes[shard])))]


def _check_languages(source: Source, plan: JobPlan) -> None:
    """Checks that there are languages if they are sampled: named, or had by the first captions."""
    named = any("language" in each or "{" in each for each in plan.inputs.arguments)
    if plan.rules.language_temperature is None or named or plan.examination.languages:
        return
    for at in _list_checked(source):
        with contextlib.suppress(BrokenExample):
            if any(map(language_of, boundary.read_texts(source, *at)[0])):
                return
    raise UserError(NO_LANGUAGE)


def _check_functions(source: Source, plan: JobPlan) -> None:
    """Checks that what the user wrote in Python can judge one of the first examples."""
    functions, failed = plan.examination.load(), []
    for at in _list_checked(source)[:TRIED] if any(functions) else []:
        try:
            example = boundary.read_example(source, *at)
            examine_example(example, plan.examination)
        except Exception as error:  # the example is to blame, and goes into the quarantine
            pass_unreachable(error)
            continue
        try:
            examine_example(example, plan.examination, *functions)
            return
        except Exception as error:
            failed.append(error)
    if len(failed) > 1:  # one may be the fault of the example
        flags = {"--classifier": plan.examination.classifier,
                 "--languages": plan.examination.languages}  # fmt: skip
        named = " or ".join(f"{flag}={name}" for flag, name in flags.items() if name)
        told = f"{type(failed[0]).__name__}: {put_in_a_line(str(failed[0]))}"
        raise UserError(f"{named} fails on all of the first examples: {told}") from failed[0]


def _check_kept(source: Source, names: tuple[str, ...]) -> None:
    """Checks that some of the first examples have each of the columns that are kept."""
    shard = int(source.shard_sizes.argmax())
    found = [steps.read_kept(source, at, names) for at in _list_checked(source)] if names else []
    for name in names:
        if all(values[name] is None for values in found):
            raise UserError(
                f"--keep={name}: none of the first {len(found)} examples of "
                f"{source.shard_name(shard)} has it"
            )


def run_pipeline(pipeline: Callable[..., None], *arguments: Any) -> None:
    """Runs a pipeline; through Beam, a UserError of a worker arrives as a line of a text."""
    try:
        pipeline(*arguments)
    except UserError as error:
        raise UserError(str(error).split(" [while running")[0]) from error
    except Exception as error:
        kinds = "UserError|Unreachable|AccessRefused"
        if found := re.findall(rf"^(?:\S+\.)?(?:{kinds}): (.+)", str(error), re.MULTILINE):
            raise UserError(found[-1].split(" [while running")[0]) from error
        raise


def _write_shards(
    plan: JobPlan, pipelines: Any, options: Any, statistics: dict[str, Any], part_bytes: int
) -> None:
    count = statistics["shards"]
    held = statistics["bytes"] * IMAGE_COPIES + statistics["kept_images"] * PAIR_BYTES
    parts = min(_count_parts(held, options, part_bytes), max(count, 1))

    def count_written() -> tuple[int, int]:
        names = storage.list_names(plan.output)
        return sum(is_shard(name, plan.shard_format) for name in names), count

    if missing := _list_missing(count, plan):
        with _show_progress("write shards", count_written):
            run_pipeline(pipelines.write, plan, missing, count, parts, options)
    if lost := _list_missing(count, plan):
        raise UserError(f"{len(lost)} shards are not there, such as {plan.shard_path(lost[0])}; "
                        "run the same command again")  # fmt: skip


def _list_missing(count: int, plan: JobPlan) -> list[int]:
    there = set(storage.list_names(plan.output))
    return [n for n in range(count) if name_shard(n, plan.shard_format) not in there]


@contextlib.contextmanager
def _show_progress(name: str, count: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """Shows how much is done, by the files that are there: this works with every runner."""
    over = threading.Event()
    with make_bar(desc=name, total=1, unit="part", dynamic_ncols=True) as bar:

        def follow() -> None:
            took = 0.0
            while not over.wait(max(POLL, took / POLLING)):
                started = time.monotonic()
                with contextlib.suppress(Exception):  # a file that is being written
                    done, total = count()
                    took = time.monotonic() - started
                    if total:
                        bar.total, bar.n = total, done
                        bar.refresh()

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
            with contextlib.suppress(Exception):
                done, total = count()
                bar.total = bar.n = total or 1
        finally:
            over.set()
            thread.join()


def write_quarantine(plan: JobPlan) -> None:
    """Writes all that cannot be used, with reasons, into one file, in the order of the input."""
    with storage.open_whole(plan.result("quarantine.jsonl")) as whole:
        for _, about in plan.read_files():
            for broken in about["broken"]:
                whole.write(steps.write_line(broken))
        for stretch in plan.list_stretches():
            for broken in storage.read_lines(plan.stretch_path("broken", stretch)):
                whole.write(steps.write_line(broken))


def remove_work(plan: JobPlan) -> None:
    """Removes the intermediate files, once the job is done, and nothing else."""
    for name in storage.list_names(plan.work):
        if name.startswith(("facts-", "decisions-")):
            storage.remove(storage.join(plan.work, name))
    if not storage.list_names(plan.work):
        storage.remove(plan.work)


def tell(plan: JobPlan, statistics: dict[str, Any]) -> str:
    """Returns what a job has made, in a few lines that can be printed."""
    kept, pairs = statistics["kept_pairs"], statistics["pairs"]
    lines = [f"{kept:,} of {pairs:,} pairs kept, of {statistics['kept_images']:,} images"]
    if statistics.get("finished_before"):
        lines.insert(0, f"{plan.output} was finished before; nothing was done")
    for name in (name for name in ORDER if name in statistics["rules"]):
        rule = statistics["rules"][name]
        lines.append(f"  {rule['first']:>12,}  {name}: {rule['drops']}")
    quarantined = statistics["quarantined"]
    if quarantined:
        lines.append(f"  {quarantined:>12,}  cannot be used: {plan.result('quarantine.jsonl')}")
    if unreadable := statistics["unreadable_files"]:
        name, reason = next(iter(unreadable.items()))
        files = f"{len(unreadable):,} of {statistics['input_files']:,} files"
        lines.append(f"{files} cannot be read; the first, {name}: {reason}")
    if (unknown := statistics["unknown_keys"]) and not plan.sample:
        listed = f"{unknown:,} of {len(steps.read_listed(plan.listed)):,} keys of {plan.listed}"
        lines.append(
            f"{listed} belong to no image; keys name file and row, as in {plan.inputs.key(0, 42)}"
        )
    if pairs and not statistics["different_texts"]:
        classes = storage.join(plan.output, "classes.txt")
        told = "no image has a text: name them with --input_argument=caption=..."
        lines.append(f"labels: {classes}" if exists(classes) else told)
    if statistics["shards"]:
        pattern = storage.join(plan.output, name_shard("*", plan.shard_format))
        lines.append(f"{pattern}: {statistics['shards']:,} shards")
    lines.append(plan.result("report.html"))
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode()  # names of files
