"""Evaluators see what training never does, in any layout and from the command line alone."""

import numpy as np
import pytest

from big_align.config.overrides import load_config
from big_align.runs import build, check, dataset
from tests.data.samples import make_members, write_tar

HELD_OUT = (
    "--config.data.hold_out=0.2",
    "--config.evaluators.pairs.source.name=held_out",
    "--config.evaluators.digits.source.name=held_out",
)
TINY = "tests/tiny_config.py"


def count_examples(source):
    return int(source.shard_sizes.sum())


def test_training_and_evaluators_divide_the_examples(tmp_path):
    shards = [m for number in range(100) for m in make_members(number)]
    path = write_tar(tmp_path / "pairs.tar", shards)
    flags = "--config.data.source.name=tar", f"--config.data.source.path={path}"
    config = load_config(TINY, *HELD_OUT, *flags, "--config.data.source.label=cls")
    check.check_config(config)
    tokenizer = build.build_tokenizer(config)
    evaluators = build.build_evaluators(config, tokenizer)
    held = evaluators["pairs"].source
    part = dataset.read_parts(config)["data"]
    names = [
        {source.name(0, index) for index in range(count_examples(source))}
        for source in (dataset.open_source(part), held, evaluators["digits"].source)
    ]
    assert names[1] == names[2] and not names[0] & names[1]
    assert len(names[0] | names[1]) == 100 and len(names[1]) > 8
    with build.build_train_loader(config, tokenizer) as loader:
        seen = {tuple(row) for s in range(40) for row in loader.batch(s)["image"][:, 0, 0].tolist()}
    numbers = {int(name.rpartition(" ")[2]) for name in names[0]}
    assert {row[0] + 256 * row[1] for row in seen} == numbers


def test_a_part_of_a_mixture_holds_out_its_own(tmp_path):
    config = load_config(
        "configs/unicl_flickr8k.py",
        "--config.data.mixture.captions.hold_out=0.1",
        "--config.evaluators.retrieval.source.name=held_out",
        "--config.evaluators.retrieval.source.part=captions",
    )
    place, fields = dataset.find_held_out(config, config.evaluators.retrieval.source, "here")
    assert place == "config.data.mixture.captions" and fields["hold_out"] == 0.1
    config.evaluators.retrieval.source.part = "caption"
    with pytest.raises(ValueError, match="here.part = 'caption' is no part of config.data.mixture"):
        dataset.find_held_out(config, config.evaluators.retrieval.source, "here")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (HELD_OUT[1:2], r"holds out, which is nothing; write --config.data.hold_out=0.05"),
        (
            ("--config.data.hold_out=1.5",),
            "hold_out = 1.5 is not .*; write --config.data.hold_out=0.05",
        ),
    ],
)
def test_a_mistake_is_told_before_anything_is_read(flags, message):
    with pytest.raises(ValueError, match=message):
        check.check_config(load_config(TINY, *flags))


def test_a_checkpoint_remembers_what_was_held_out():
    records = []
    for fraction in (0.2, 0.3):
        config = load_config(TINY, f"--config.data.hold_out={fraction}")
        records.append(build.describe_run(config, build.build_tokenizer(config)))
    assert records[0] != records[1]
    assert {k: v for k, v in records[0].items() if k != "hold_out"} == {
        k: v for k, v in records[1].items() if k != "hold_out"
    }
    assert np.isclose(records[0]["hold_out"]["config.data"], 0.2)
