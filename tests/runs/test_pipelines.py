"""Runs on a tf.data pipeline that the config names, and what is wrong with pipelines."""

import gc
import random
import shutil
import signal
import weakref

import numpy as np
import pytest
from etils import epy

from big_align.config.overrides import load_config
from big_align.core.errors import CheckpointMismatch, ConfigError, UserError
from big_align.data.tf_data.batch_checks import Limits
from big_align.data.tf_data.dataset_loader import (
    DatasetFacts,
    DatasetLoader,
    SavedDatasetLoader,
    attach_facts,
)
from big_align.runs import build, check, train
from tests.run_main import TINY, Run, read_losses

with epy.lazy_imports():  # for seconds, which tests that are not run need not wait
    import tensorflow as tf

IMAGE_TEXT = "big_align.runs.pipelines:image_text"
OWN = ("tests.pipelines:saved", "tests.pipelines:from_step")
FLAGS = ("--config.total_steps=5", "--config.checkpoint.every=2", "--config.evaluators={}")


def load(pipeline, *flags):
    return load_config(TINY, *FLAGS, f"--config.data.pipeline={pipeline}", *flags)


def forget_after(workdir, step: int) -> None:
    """Leaves a workdir as if the run had been killed after a checkpoint."""
    for folder in (workdir / "checkpoints").iterdir():
        if folder.name.isdecimal() and int(folder.name) > step:
            shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [*OWN, IMAGE_TEXT])
def test_what_comes_after_the_last_checkpoint_is_done_again_with_the_same_losses(
    tmp_path, pipeline
):
    train.run(load(pipeline), str(tmp_path))
    losses = read_losses(tmp_path)
    assert [step for step, _ in losses] == [1, 2, 3, 4, 5]
    has_position = (tmp_path / "checkpoints" / "4" / "pipeline" / "process_0_of_1").is_dir()
    assert has_position == (pipeline == OWN[0])
    forget_after(tmp_path, 4)
    train.run(load(pipeline), str(tmp_path))
    assert read_losses(tmp_path) == losses


@pytest.mark.slow
def test_the_two_ways_to_keep_a_position_train_alike_and_unlike_the_source(tmp_path):
    losses = {}
    for name in (*OWN, ""):
        train.run(load(name, "--config.total_steps=3"), str(tmp_path / name.partition(":")[2]))
        losses[name] = read_losses(tmp_path / name.partition(":")[2])
    assert losses[OWN[0]] == losses[OWN[1]] != losses[""]


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [OWN[0], IMAGE_TEXT])
def test_a_killed_run_continues_with_the_same_losses(tmp_path, pipeline):
    flags = (
        "--config.total_steps=20",
        "--config.checkpoint.every=3",
        "--config.evaluators={}",
        f"--config.data.pipeline={pipeline}",
    )
    assert Run(tmp_path / "whole", *flags).wait() == 0
    run = Run(tmp_path / "killed", *flags)
    run.wait_for_step(random.randint(4, 12))
    run.signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL and run.steps[-1] < 20
    again = Run(tmp_path / "killed", *flags)
    assert again.wait() == 0, again.err
    assert read_losses(tmp_path / "killed") == read_losses(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_of_two_processes_has_the_losses_of_one(tmp_path):
    flags = (*FLAGS, f"--config.data.pipeline={OWN[0]}")
    one = Run(tmp_path / "one", *flags)
    assert one.wait() == 0, one.err
    two = Run(tmp_path / "two", *flags, processes=2)
    assert two.wait() == 0, two.err
    np.testing.assert_allclose(
        read_losses(tmp_path / "two"), read_losses(tmp_path / "one"), rtol=1e-4
    )
    forget_after(tmp_path / "two", 4)
    more = Run(tmp_path / "two", *flags)
    assert more.wait() == 1
    assert "process_0_of_2, process_1_of_2 and not process_0_of_1" in more.err
    again = Run(tmp_path / "two", *flags, processes=2)
    assert again.wait() == 0, again.err
    assert len(read_losses(tmp_path / "two")) == 5


@pytest.mark.slow
def test_another_pipeline_cannot_continue_a_run(tmp_path):
    train.run(load(OWN[0], "--config.total_steps=2"), str(tmp_path))
    with pytest.raises(CheckpointMismatch, match="pipeline = tests.pipelines:saved"):
        train.run(load(OWN[1]), str(tmp_path))


def build_loader(pipeline, **data):
    config = load(pipeline)
    config.data.update(data)
    return build.build_train_loader(config, build.build_tokenizer(config))


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("tests.pipelines", "is not of the form package.module:function"),
        ("tests.pipelines:nothing", "cannot be imported: .* no attribute 'nothing'"),
        ("tests.pipelinez:saved", "cannot be imported: No module named 'tests.pipelinez'"),
        ("tests.pipelines:needs_more", "needs 'vocabulary', .* config, start_step, rows"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_before_anything_runs(pipeline, message):
    with pytest.raises(ConfigError, match=rf"config.data.pipeline = '{pipeline}' {message}"):
        check.check_config(load(pipeline))


def test_a_pipeline_needs_no_source_but_something_is_needed():
    check.check_config(load(OWN[0], "--config.data.source={}"))
    with pytest.raises(ConfigError, match="config.data.source is missing"):
        check.check_config(load("", "--config.data.source={}"))


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("ending", r"ended after 12 batches; repeat\(\) makes it endless"),
        ("uneven", r"has 8 rows of image where 16 are wanted; batch\(16, drop_remainder=True\)"),
        ("python_inside", "TensorFlow cannot save its iterator .* take start_step"),
        ("no_dataset", "returns a list; it must return a tf.data.Dataset"),
    ],
)
def test_what_a_pipeline_makes_is_refused_with_what_would_be_right(pipeline, message):
    with pytest.raises(UserError, match=message), build_loader(f"tests.pipelines:{pipeline}") as it:
        batches = it.iterate(0)
        for _ in range(20):
            next(batches)


def spec(**changed):
    fields = {
        "image": tf.zeros((16, 8, 8, 3), tf.uint8),
        "text": tf.zeros((16, 12), tf.int32),
        "text_mask": tf.ones((16, 12), tf.bool),
    }
    return {k: v for k, v in (fields | changed).items() if v is not None}


ROW = {
    "image": ((8, 8, 3), np.uint8),
    "text": ((12,), np.int32),
    "text_mask": ((12,), bool),
    "label": ((), np.int32),
    "mask": ((), bool),
}


LIMITS = Limits({"text": 30, "label": 10, "tags": 5, "clusters": 40}, (-2.1, 2.6))


def make_loader(batch) -> DatasetLoader:
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    where = "config.data.pipeline = 'a:b'"
    return DatasetLoader(lambda step: dataset, ROW, 16, 32, where, LIMITS)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"text": None}, "makes no 'text'; it makes image, text_mask"),
        ({"caption": tf.zeros(16)}, "makes 'caption', which is no field of a batch"),
        ({"text": tf.zeros((16, 12), tf.int64)}, r"text is of type int64; .* tf.cast\(..., tf.int"),
        ({"image": tf.zeros((16, 8, 8, 3), tf.float64)}, "must be uint8 or float32"),
        ({"image": tf.zeros((32, 8, 8, 3), tf.uint8)}, r"batches of 32; .* 16 rows .* batch\(16"),
        ({"image": tf.zeros((16, 9, 9, 3), tf.uint8)}, r"\[16, 8, 8, 3\]: .*'resize\(9\)'"),
        ({"text": tf.zeros((16, 4), tf.int32)}, r"\[16, 12\]: cut or pad texts to config.tok"),
        ({"label": tf.zeros((16, 1), tf.int32)}, r"label has the shape \[16, 1\]; .* 1 axes, \[16"),
        ({"text": tf.RaggedTensor.from_row_lengths(tf.range(16), [1] * 16)}, "text is a Ragged"),
    ],
)
def test_a_field_that_does_not_fit_is_named_with_what_would_be_right(changed, message):
    with pytest.raises(UserError, match=rf"config.data.pipeline = 'a:b'.*{message}"):
        make_loader(spec(**changed))


def test_images_of_floats_must_be_standardized():
    """Models take floats as they are, and evaluators standardize what they read."""
    levels = tf.reshape(tf.range(16 * 8 * 8 * 3, dtype=tf.float32) % 256, (16, 8, 8, 3))
    with pytest.raises(UserError, match="'a:b': image is float from 0 to 255 .* cast to uint8"):
        make_loader(spec(image=levels)).batch(0)
    with pytest.raises(UserError, match=r"'a:b': image is float from 0 to 1 .*round\(255 \* image"):
        make_loader(spec(image=levels / 255)).batch(0)
    with pytest.raises(UserError, match="'a:b': image is uint8 up to 1 .* multiplied by 255"):
        make_loader(spec(image=tf.cast(tf.round(levels / 255), tf.uint8))).batch(0)
    with pytest.raises(UserError, match="'a:b': image has NaN or infinity"):
        make_loader(spec(image=tf.where(levels > 250, np.nan, levels / 255 - 0.5))).batch(0)
    standard = (levels / 255 - 0.45) / 0.225
    for image in (standard, tf.cast(levels, tf.uint8)):
        np.testing.assert_array_equal(make_loader(spec(image=image)).batch(0)["image"], image)


def put(value, *shape):
    """Zeros of a shape, the last of them another value."""
    array = np.zeros(shape, np.int32)
    array.ravel()[-1] = value
    return tf.constant(array)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"text": put(-1, 16, 12)}, "text has a -1; ids of tokens are from 0 to 29 .* pad texts"),
        ({"text": put(30, 16, 12)}, r"text has a 30; .* from 0 to 29 \(config.model.text.vocab"),
        ({"label": put(-2, 16)}, "label has a -2; labels are from 0 to 9, .* and -1 for pairs"),
        ({"label": put(10, 16)}, "label has a 10; labels are from 0 to 9"),
        ({"tags": put(5, 16, 3)}, "tags has a 5; tags are from 0 to 4"),
        ({"true_tags": put(-2, 16, 3)}, "true_tags has a -2; tags are from 0 to ..., "),
        ({"clusters": put(40, 16, 3)}, "clusters has a 40; clusters are from 0 to 39"),
    ],
)
def test_a_number_out_of_range_is_named_in_whatever_batch_it_is(wrong, message, late):
    """The last row of a table, or NaN, would be trained on without a word."""
    fields = spec(**{name: tf.zeros_like(value) for name, value in wrong.items()})
    first = tf.data.Dataset.from_tensors(fields).repeat(3 if late else 0)
    dataset = first.concatenate(tf.data.Dataset.from_tensors(fields | wrong))
    where = "config.data.pipeline = 'a:b'"
    batches = DatasetLoader(lambda step: dataset, ROW, 16, 16, where, LIMITS).iterate(0)
    for _ in range(3 * late):
        next(batches)
    with pytest.raises(UserError, match=rf"'a:b': {message}"):
        next(batches)


def test_a_first_batch_without_anything_to_learn_from_is_refused():
    nothing = tf.zeros((16, 12), tf.bool)
    with pytest.raises(UserError, match="'a:b': text_mask is False .* no label nor clusters"):
        make_loader(spec(text_mask=nothing, clusters=tf.fill((16, 2), -1))).batch(0)
    make_loader(spec(text_mask=nothing, clusters=put(0, 16, 2))).batch(0)  # clusters are enough
    with pytest.raises(UserError, match="'a:b': mask is False in all rows"):
        make_loader(spec(mask=tf.zeros(16, tf.bool))).batch(0)


def test_the_limits_are_those_of_the_config():
    limits = build.find_limits(load(OWN[0]))
    config = load(OWN[0])
    assert limits.counts["text"] == build.build_model(config).text.vocab_size
    with pytest.raises(UserError, match="tests.pipelines:beyond.*: text has a 10000"):
        build_loader("tests.pipelines:beyond").batch(0)


def test_labels_and_mask_may_be_left_out_and_clusters_may_be_there():
    clusters = tf.range(32)[:, None][:16]
    with make_loader(spec(clusters=clusters)) as loader:
        batch = next(loader.iterate(0))
    np.testing.assert_array_equal(batch["label"], np.full(16, -1, np.int32))
    np.testing.assert_array_equal(batch["mask"], np.ones(16, bool))
    np.testing.assert_array_equal(batch["clusters"], clusters)


def test_an_error_inside_of_a_pipeline_is_one_line_that_names_it():
    dataset = tf.data.Dataset.from_tensors(spec()).map(
        lambda batch: batch | {"label": tf.ensure_shape(tf.io.decode_raw("abc", tf.int32), 16)}
    )
    loader = DatasetLoader(
        lambda step: dataset, ROW, 16, 16, "config.data.pipeline = 'a:b'", LIMITS
    )
    with pytest.raises(UserError, match=r"^config.data.pipeline = 'a:b': [^\n]*$"):
        next(loader.iterate(0))


def test_looking_at_the_first_batch_does_not_skip_it():
    """What was looked at comes first, and what a position holds is what was taken."""
    with build_loader(OWN[0]) as looked, build_loader(OWN[0]) as straight:
        first = looked.batch(0)
        batches, wanted = looked.iterate(0), straight.iterate(0)
        for number in range(3):
            got, want = next(batches), next(wanted)
            assert number or got is first
            for name in got:
                np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("kind", [DatasetLoader, SavedDatasetLoader])
def test_going_on_at_a_step_lets_go_of_the_data_set_of_the_first_batch(kind):
    opened = []

    def make(step):
        sources = {len(opened)}
        opened.append(weakref.ref(sources))
        dataset = tf.data.Dataset.from_tensors(spec()).repeat()
        facts = DatasetFacts(broken=lambda: max(sources), error=lambda: sources and None)
        return attach_facts(dataset, facts)

    def held():
        gc.collect()
        return [number for number, each in enumerate(opened) if each() is not None]

    with kind(make, ROW, 16, 16, "config.data.pipeline = 'a:b'", LIMITS) as loader:
        loader.batch(0)
        assert held() == [0] and loader.broken == 0
        batches = loader.iterate(5)
        newest = len(opened) - 1
        assert held() == [newest] and loader.broken == newest > 0
        next(batches)


def test_an_iterator_that_was_saved_goes_on_where_it_stood(tmp_path):
    with build_loader(OWN[0]) as loader:
        batches = loader.iterate(0)
        for _ in range(5):
            next(batches)
        loader.write(str(tmp_path))
        wanted = [next(batches) for _ in range(3)]
    for saved, first in ((True, 5), (True, 6), (False, 7)):
        with build_loader(OWN[0]) as loader:
            loader.batch(0)
            if saved:
                loader.read(str(tmp_path))
            # A run that leaves out data begins later than the position, or than the first batch.
            batches = loader.iterate(first)
            for want in wanted[first - 5 :]:
                got = next(batches)
                for name in want:
                    np.testing.assert_array_equal(got[name], want[name])
            loader.write(str(tmp_path / f"{saved}-{first}"))
    with build_loader(OWN[0]) as loader:
        loader.read(str(tmp_path / "False-7"))
        with pytest.raises(UserError, match="which is at step 8 and not at 7 or before"):
            next(loader.iterate(7))
