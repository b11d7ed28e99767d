"""CLIP from scratch, whole and reduced: what its stages share, and what they are together."""

import pytest

from big_align.config.overrides import load_config
from big_align.core.errors import UserError
from tests.data.samples import make_members, write_tar

CLIP = "configs/clip_vit.py"
SIZES = ("b32", "b16", "l14", "h14")


def load_stages(argument):
    """Returns the configs of the first stage and of the second."""
    config = load_config(f"{CLIP}:{argument}")
    return config.first, config


def count_samples(*stages):
    return sum(stage.total_steps * stage.batch_size for stage in stages)


def test_the_samples_of_both_stages_are_those_of_the_whole_run():
    for given in ("samples=2.56e9,size=l14", "size=h14", "samples=3200,batch=32", "batch=1000"):
        stages, whole = load_stages(f"{given},reduced=yes"), load_config(f"{CLIP}:{given}")
        assert "first" not in whole or not whole.first
        rounded = sum(stage.batch_size for stage in (*stages, whole)) / 2
        assert abs(count_samples(*stages) - count_samples(whole)) <= rounded, given
        assert 0.03 < count_samples(stages[1]) / count_samples(*stages) < 0.05, given
        for stage in (*stages, whole):
            assert 0 <= stage.schedule.warmup_steps <= stage.total_steps // 5
            assert max(stage.log_every, stage.evaluate_every) <= stage.total_steps
    batches = {stage.batch_size for stage in load_stages("batch=1000,reduced=yes")}
    assert batches == {1000}


@pytest.mark.parametrize("objective", ["clip", "siglip"])
def test_stages_train_one_model_on_the_same_pairs(objective):
    for size in SIZES:
        first, config = load_stages(f"size={size},reduced=yes,objective={objective}")
        for node in ("objective", "optimizer"):
            assert first[node].to_dict() == config[node].to_dict()
        assert without(first.model.to_dict(), "keep") == without(config.model.to_dict(), "keep")
        assert first.data.source.to_dict() == config.data.source.to_dict()
        assert first.data.hold_out == config.data.hold_out > 0
        tokens = [each.tokenizer.to_dict() for each in (first, config)]
        assert without(tokens[0], "shorten") == without(tokens[1], "shorten")
        assert config.objective.name == objective and ("bias" in config.objective) == (
            objective == "siglip"
        )
        # The temperature, with which the bias comes, is not that of the start again.
        assert config.init.temperature == "all" and not first.init.temperature


def without(node, field):
    """Returns a node without a field and `length`, in nodes below too."""
    return {
        name: without(value, field) if isinstance(value, dict) else value
        for name, value in node.items()
        if name not in (field, "length")
    }


def test_the_first_stage_has_fewer_tokens_in_whole_patches_and_the_second_all():
    for size in SIZES:
        patch, stages = int(size[1:]), load_stages(f"size={size},reduced=yes")
        edges = [int(stage.data.transform.partition("(")[2].split(",")[0]) for stage in stages]
        assert all(edge % patch == 0 for edge in edges) and edges[1] == 224
        assert (edges[0] // patch) ** 2 <= (edges[1] // patch) ** 2 / 3
        for stage, edge in zip(stages, edges, strict=True):
            assert f"central_crop({edge})" in stage.evaluators.retrieval.transform
            assert stage.tokenizer.length <= stage.model.text.max_length
        assert stages[0].tokenizer.length <= stages[1].tokenizer.length / 2


def test_rates_are_those_of_their_papers():
    """CLIP's by model at any batch; CLIPA-v2's 2.048e-3 for 65,536 and 5.12e-5 for 32,768."""
    peak = lambda config: config.schedule.learning_rate  # noqa: E731
    assert peak(load_config(f"{CLIP}:size=b32")) == 5e-4
    assert peak(load_config(f"{CLIP}:size=l14,batch=4096")) == 4e-4
    first, config = load_stages("size=l14,reduced=yes")
    assert peak(first) == pytest.approx(2.048e-3) and first.batch_size == 65_536
    first, config = load_stages("size=l14,reduced=yes,batch=32768")
    assert peak(first) == pytest.approx(1.024e-3) and peak(config) == pytest.approx(5.12e-5)
    assert first.schedule.warmup_steps == 1600 and config.schedule.warmup_steps == 800


def test_pairs_are_found_as_by_own_pairs(tmp_path, capsys):
    members = [m for number in range(40) for m in make_members(number)]
    path = write_tar(tmp_path / "pairs.tar", members)
    rest = "caption=json.captions,label=cls,classes=cifar10,depth=2,batch=8,samples=80"
    config = load_config(f"{CLIP}:{path},{rest}")
    assert "40 examples" in capsys.readouterr().out
    assert config.to_dict() == load_config(f"{CLIP}:data={path},{rest}").to_dict()
    assert config.data.source.path == str(path) and config.total_steps == 10
    assert config.model.image.depth == config.model.text.depth == 2
    assert {*config.evaluators} == {"retrieval", "zero_shot"}


def test_a_vocabulary_is_learned_or_read():
    tokenizers = {
        name: load_config(f"{CLIP}:vocabulary={name}").tokenizer.name
        for name in ("bpe_simple_vocab_16e6.txt.gz", "merges.txt", "vocabulary.txt", "from_data")
    }
    assert [*tokenizers.values()] == ["clip", "clip", "wordpiece", "wordpiece"]


@pytest.mark.parametrize(
    "argument,told",
    [
        ("size=b8", "size = 'b8' is unknown; known: b32, b16, l14, h14"),
        ("reduced=1", "reduced = '1' is unknown; known: yes, no"),
        ("objective=mlcd", "objective = 'mlcd' is unknown"),
        ("samples=many", "samples=many must be a whole number above 0"),
        ("batch=2.5", "batch=2.5 must be a whole number above 0"),
        ("depth=0", "depth=0 must be a whole number above 0"),
        ("samples=nan", "samples=nan must be a whole number above 0"),
        ("samples=1e4", "samples=1e4 leaves 10000 for a stage with batches of 32768"),
        ("samples=200,batch=32,reduced=yes", "samples=200 leaves 8 for a stage with batches of 32"),
    ],
)
def test_a_wrong_value_is_a_line_that_names_the_argument(argument, told):
    with pytest.raises(UserError) as error:
        load_config(f"{CLIP}:{argument}")
    assert told in str(error.value) and "\n" not in str(error.value)


def test_images_without_texts_are_for_another_config(tmp_path):
    path = write_tar(tmp_path / "pairs.tar", make_members(0))
    with pytest.raises(UserError, match="own_pairs.py learns classes"):
        load_config(f"{CLIP}:{path},caption=,classes=cifar10")
