"""Training: build, restore, loop, evaluate, save. Nothing here is specific to an objective.

A run may be the last of several stages: `config.first` is the config of the one before it, whose
weights it starts from. That stage is in WORKDIR/first, and may have a `first` itself. The same
command continues whichever is unfinished.
"""

import contextlib
import copy
import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from clu import parameter_overview
from jax.sharding import Mesh

from big_align.config.components.signatures import make
from big_align.config.components.tables import TOWERS
from big_align.config.kept_files import keep_files
from big_align.config.overrides import read_given
from big_align.config.stages import (
    FIRST,
    count_batches_before,
    list_stages,
    naming_stage,
)
from big_align.core import whole_files
from big_align.core.errors import Rewound, Stopped
from big_align.core.nodes import Node
from big_align.core.types import Batch, Objective, TrainingData
from big_align.data.precomputed.embedding_files import ClusterFolder
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.evaluator import Evaluator
from big_align.evaluators.exhibits.clusters import show_clusters
from big_align.evaluators.exhibits.exhibit import Show
from big_align.evaluators.exhibits.first_batch import show_batch, take_first
from big_align.pages.run_report import report, starts
from big_align.pages.run_report.gallery import Gallery
from big_align.parallel.batches import place_batch, process_rows
from big_align.parallel.devices.compilation import use_cache
from big_align.parallel.distributed import agreement
from big_align.runs import build, check, dataset, restore
from big_align.runs.cached_features import FOLDER as FEATURES
from big_align.runs.cached_features import cache_features
from big_align.runs.evaluate import describe_evaluators, evaluate_all
from big_align.runs.initial_weights import create_state, settle
from big_align.runs.program import Program, build_program
from big_align.runs.workdir import outline_model
from big_align.training.health.rewinds import HEALTH, REWIND, Health
from big_align.training.logs.directions import collect_said
from big_align.training.logs.evaluations import TRAINING, EvaluationLog
from big_align.training.logs.goodput import Clock, RunTime
from big_align.training.logs.metrics import MetricWriter, Progress
from big_align.training.logs.trackers import Tracker, open_trackers
from big_align.training.loop import Loop, Schedule
from big_align.training.profiling import Profiler
from big_align.training.saving.checkpoint import Checkpointer
from big_align.training.saving.ownership import own
from big_align.training.saving.step_folders import read_record
from big_align.training.state import TrainState
from big_align.training.stopping import StopSignals
from big_align.weights.api import list_formats, tell_formats

PREPARING = "stopped on request before the first step; the same command continues"


def _leave_description(
    workdir: str, config: Any, state: TrainState, facts: Mapping[str, Any]
) -> None:
    """Writes the config, a table of parameters and the start of this process into the workdir."""
    if jax.process_index() != 0:
        return
    folder = pathlib.Path(workdir)
    whole_files.remove_leftovers(folder)
    for line in restore.keep_config(workdir, config, int(state.step)):
        print(line)
    keep_files(workdir, config, dataset.own_classes(config))
    table = parameter_overview.get_parameter_overview(state.params, include_stats=False)
    (folder / "parameters.txt").write_text(table + "\n")
    parts = {k: sum(x.size for x in jax.tree.leaves(v)) for k, v in _parts(state.params).items()}
    machine = starts.describe_machine(
        jax.device_count(), jax.devices()[0].device_kind, jax.process_count()
    )
    now = {"time": time.time(), "step": int(state.step), "parameters": parts}
    starts.record_start(workdir, {**now, **machine, **facts})
    print(f"devices: {starts.format_devices(machine['devices'])}")
    print(f"{sum(parts.values()):,} parameters; each one is listed in {folder}/parameters.txt")
    for name, count in parts.items():
        print(f"  {name:<24} {count:>14,}")


def _tell_formats(
    config: Any, tokenizer: Tokenizer, state: TrainState, workdir: str
) -> dict[str, str]:
    """Returns where the model opens, as `list_formats` does, and says it before a fresh run trains.

    Towers from elsewhere open nowhere but here.
    """
    nodes = {part: config.model.get(part) for part in TOWERS}
    known = all(node["name"] in TOWERS[part] for part, node in nodes.items() if node)
    if jax.process_index() != 0 or "model" not in state.params or not known:
        return {}
    model = outline_model(config, tokenizer, state.params, state.model_state, workdir)
    if not int(state.step) and os.path.basename(workdir) != FIRST:
        print(tell_formats(model))
    return list_formats(model)


def _count_examples(
    loader: TrainingData, evaluators: Mapping[str, Evaluator]
) -> dict[str, int | None]:
    """Counts the training examples, and the examples of each evaluator."""
    sources = {name: getattr(each, "source", None) for name, each in evaluators.items()}
    counts = {name: int(x.shard_sizes.sum()) for name, x in sources.items() if x is not None}
    return {"training": loader.num_examples, **counts}


def _show_data(config: Any) -> dict[str, Show]:
    """Returns a function that shows the clusters, for each part of the data that has clusters."""
    parts = dataset.read_parts(config)
    clustered = {name: part for name, part in parts.items() if "clusters" in part.precomputed}
    return {
        name: lambda part=part: show_clusters(
            dataset.open_source(part), ClusterFolder(part.precomputed["clusters"])
        )
        for name, part in clustered.items()
    }


def _parts(params: Any) -> dict[str, Any]:
    """Returns the parameters two levels deep: one entry for each tower and projection."""
    parts = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            parts |= {f"{name}/{key}": inner for key, inner in value.items()}
        else:
            parts[name] = value
    return parts


def _train_first(config: Any, workdir: str, stages: int) -> Any:
    """Trains the stage before a run to its end, unless the run itself has begun.

    Both share a cache of features. Returns the config of the run, which starts from its weights.
    """
    given, config = config, copy.deepcopy(config)
    folder, first = os.path.join(workdir, FIRST), config.first
    with config.unlocked():
        config.init.all = folder
        features = config.cached_features.folder or os.path.join(workdir, FEATURES)
        first.cached_features.folder = first.cached_features.folder or features
    if not agreement.share("begun", build.has_begun(config, workdir)):
        if jax.process_index() == 0:  # so that the workdir alone says what is to come
            print("".join(f"{line}\n" for line in restore.keep_config(workdir, given, 0)), end="")
        try:
            with own(folder, *filter(None, [first.checkpoint.folder])), naming_stage():
                # If it is finished, this looks for what an interruption left out.
                _run(first, folder, stages)
        except BaseException:
            report.refresh_report(workdir)  # which has all stages
            raise
    return config


def train(
    config: Node | str | os.PathLike, workdir: str | os.PathLike, *overrides: str
) -> dict[str, float]:
    """Trains a model as the command line does, or continues what is in the workdir.

    Args:
      config: a config, or its file in the form that `--config` takes.
      workdir: the folder of the run, for metrics, the report and checkpoints.
      overrides: as in `--config.batch_size=64`, if a file is given.

    Returns:
      The numbers of the last evaluation, by `evaluator/name`; none if none was due.

    Raises:
      UserError: a field of the config, the data or the workdir cannot be used.
      Stopped: the run was interrupted, and is saved; the same call continues it. It is no
        `Exception`, as KeyboardInterrupt is none.

    Examples:
      Ten steps on scanned digits; `big_align.load` opens what they made:

      >>> import tempfile
      >>> import big_align
      >>> folder = tempfile.TemporaryDirectory()
      >>> workdir = folder.name
      >>> override = "--config.total_steps=10"
      >>> numbers = big_align.train("quickstart", workdir, override)  # doctest: +ELLIPSIS
      exports: the whole model to big_align, jax_export; its image tower to timm; ...
      ...
      >>> "digits/mean_per_class" in numbers
      True
      >>> model = big_align.load(workdir)
      >>> model.embed_texts(["a three", "a four"]).shape
      (2, 64)
    """
    return run(read_given(config, *overrides), os.path.expanduser(workdir))


def run(
    config: Any,
    workdir: str,
    profile: tuple[int, int] | None = None,
    command: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Trains as the config says, and continues from what is in the workdir.

    `profile` is the first and the last step to trace, and `command` how the process was started,
    for the report (`command_line.describe_command`). Returns the numbers of the last evaluation,
    none if none was due.

    What can be mended is a UserError of `core.errors`. `Stopped` is raised on request, once the
    state is saved.
    """
    config = settle(config, workdir)
    check.check_config(config, workdir=workdir)
    use_cache(config.compilation_cache)
    folder, features = config.checkpoint.folder, config.cached_features
    # Every process writes its part of a checkpoint, and reads what the first run has left.
    shared = [folder or workdir]
    if config.get(FIRST) or (features.towers and not features.folder):
        shared.append(workdir)
    with own(workdir, *filter(None, [folder]), shared=shared):
        return _run(config, workdir, len(list_stages(config)), profile, command)


def _run(
    config: Any,
    workdir: str,
    stages: int,
    profile: tuple[int, int] | None = None,
    command: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Trains one of several stages as a checked config says, after those before it.

    It starts again whenever the run decides to go back.

    Going back is the same as continuing, so another process that continues finds the same state.
    """
    while True:
        try:
            return _run_on(config, workdir, stages, profile, command)
        except Rewound as decision:
            if jax.process_index() == 0:
                print(decision)
            profile = None  # its steps may have passed


def _run_on(
    config: Any,
    workdir: str,
    stages: int,
    profile: tuple[int, int] | None,
    command: Mapping[str, Any] | None,
) -> dict[str, float]:
    """Trains from the newest checkpoint on, after the stages before."""
    given = config  # that of the run; `config` starts from a first run, and `fed` reads features
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        if config.get(FIRST):
            config = _train_first(config, workdir, stages)
        if stages > 1 and jax.process_index() == 0:
            print(f"stage {len(list_stages(config))} of {stages}")
        clock = Clock()
        with signals.interrupting(PREPARING):
            fed = cache_features(config, workdir)
            built = _build(config, fed)
        # Errors in the data are reported before a workdir is created.
        loader, record, examples, first_batch = _open_data(config, fed, built, stack)
        stack.callback(report.refresh_report, workdir)
        run_time = RunTime(workdir, clock)
        stack.callback(run_time.report)
        said = collect_said(built.evaluators)
        checkpointer = build.build_checkpointer(config, workdir, said=said, parts=loader.saved)
        stack.callback(checkpointer.close)
        stack.callback(clock.begin, "saving")  # closing waits for what is being written
        example = build.example_batch(config, built.tokenizer)
        program = build_program(config, built.mesh, built.objective, example)
        state = _restore_or_create(config, workdir, built, program, checkpointer, loader, clock)
        facts = {
            "examples": _count_examples(loader, built.evaluators),
            "inputs": {"image": example["image"].shape[-3:-1], "text": example["text"].shape[-1]},
            "formats": _tell_formats(config, built.tokenizer, state, workdir),
        }
        _leave_description(workdir, given, state, facts | (command or {}))
        health = _build_health(config, workdir, state, built, loader, checkpointer, record)
        profiler = Profiler(workdir, profile, int(state.step), config.total_steps)
        stack.callback(profiler.close)
        shown = {"first batch": lambda: show_batch(examples, built.tokenizer), **_show_data(config)}
        gallery = Gallery(workdir, config.total_steps, shown)
        trackers = _open_trackers(config, workdir)
        if checkpointer.preempted():  # of several processes; compiling may take minutes
            raise Stopped(PREPARING)
        with clock.phase("compiling"):
            step, step_flops = program.compile_and_count(first_batch)
        about = describe_evaluators(config, built.evaluators)
        start, total = int(state.step), config.total_steps
        loop = Loop(
            MetricWriter(workdir, start, trackers),
            Progress(start, total, config.batch_size, step_flops, clock),
            Schedule(total, config.log_every, config.evaluate_every, config.checkpoint.every),
            checkpointer=checkpointer,
            evaluate=_build_evaluation(config, built, gallery),
            evaluations=EvaluationLog(workdir, TRAINING, about),
            pictures=gallery.finish,
            health=health,
            learning_rate=program.learning_rate,
            record=record,
            epochs=lambda step: loader.epochs(health.data_step(step)),
            signals=signals,
            time=run_time,
            profiler=profiler,
        )
        batches = health.leave_out(loader.iterate, start)
        placed = (place_batch(batch, built.mesh) for batch in batches)
        try:
            return loop.run(state, placed, step)
        except Rewound as decision:
            if signals.received:  # the decision is in the workdir
                raise Stopped(f"{decision}; but stopped on request first") from None
            raise


class _Built(NamedTuple):
    """What a config builds without a workdir and without training data."""

    mesh: Mesh
    tokenizer: Tokenizer
    objective: Objective
    evaluators: Mapping[str, Evaluator]
    record: Mapping[str, Any]  # what a checkpoint must agree with


def _build(config: Any, fed: Any) -> _Built:
    """Builds what is trained, and checks it against the data in `fed`, the config of the loader."""
    mesh = build.build_mesh(config)
    tokenizer = build.build_tokenizer(config)
    objective = build.build_objective(config, mesh, tokenizer)
    evaluators = build.build_evaluators(config, tokenizer)
    record = build.describe_run(fed, tokenizer)
    said = {f"fingerprint of {k}": json.dumps(v, sort_keys=True) for k, v in record.items()}
    agreement.check_inputs("record", lambda: said)
    check.check_precomputed(fed, objective)
    check.check_keep_best(config, evaluators)
    return _Built(mesh, tokenizer, objective, evaluators, record)


class _Data(NamedTuple):
    """The training data of a run."""

    loader: TrainingData
    record: dict[str, Any]  # what the next checkpoints say of it and of what is built
    examples: Batch  # the first, to show
    first_batch: Batch  # on the devices


def _open_data(config: Any, fed: Any, built: _Built, stack: contextlib.ExitStack) -> _Data:
    """Opens the training data, which every process has alike, and reads a batch."""
    rows = process_rows(built.mesh, config.batch_size)
    loader = stack.enter_context(build.build_train_loader(fed, built.tokenizer, rows))
    agreement.check_data(loader.shards)
    # A restored state agrees with the record of what is built; sizes are compared after it.
    record = {**built.record, restore.SIZES: dict(loader.sizes)}
    # An iterator that is saved cannot begin elsewhere than at its beginning.
    record[restore.SKIPPED] = 0 if loader.saved else count_batches_before(config)
    local = loader.batch(0)  # placed before its memory is used again
    return _Data(loader, record, take_first(local), place_batch(local, built.mesh))


def _restore_or_create(
    config: Any,
    workdir: str,
    built: _Built,
    program: Program,
    checkpointer: Checkpointer,
    loader: TrainingData,
    clock: Clock,
) -> TrainState:
    with clock.phase("restoring"), restore.named_tokenizers(workdir, config, built.tokenizer):
        state = checkpointer.restore(program.state, built.record)
    if state:
        found = checkpointer.folder, int(state.step)
        restore.check_continued(config, workdir, *found, loader.sizes)
        return state
    restore.check_not_begun(workdir, checkpointer.folder)
    return create_state(config, program, built.tokenizer)


def _build_health(
    config: Any,
    workdir: str,
    state: TrainState,
    built: _Built,
    loader: TrainingData,
    checkpointer: Checkpointer,
    record: dict[str, Any],
) -> Health:
    """Returns what watches the run; a run that continues goes on with its own order of examples."""
    step, saved = int(state.step), {}
    if step:
        saved = read_record(checkpointer.folder / str(step)) or {}
        record[restore.SKIPPED] = saved.get(restore.SKIPPED, 0)
    return Health(
        workdir,
        step,
        rewinds=config.on_divergence == REWIND,
        list_examples=loader.list_examples,
        last_good=lambda: checkpointer.latest_step,
        saved=saved.get(HEALTH),
        skipped=record[restore.SKIPPED],
        watched=getattr(built.objective, "watched", {}),
    )


def _build_evaluation(
    config: Any, built: _Built, gallery: Gallery
) -> Callable[[TrainState], dict[str, float]]:
    """Returns a function that runs all evaluators on a state and passes pictures to the gallery."""
    embedder = Embedder(built.objective, built.mesh, config.evaluate_batch_size)

    def evaluate(state: TrainState) -> dict[str, float]:
        gallery.begin(int(state.step))
        return evaluate_all(built.evaluators, embedder.use(*state.evaluated), gallery.add)

    return evaluate


def _open_trackers(config: Any, workdir: str) -> list[Tracker]:
    if jax.process_index() != 0:
        return []
    given = {"workdir": workdir, "described": config.to_dict()}
    return make(open_trackers, config.log, "config.log", **given)
