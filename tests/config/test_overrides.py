"""Components are chosen on a command line; a mistake prints a command line that is right."""

import re
import shlex

import pytest

from big_align.config.components.signatures import check_arguments
from big_align.config.home_folder import expand_home
from big_align.config.overrides import load_config
from big_align.core.errors import ConfigError, UserError
from big_align.data.sources.tar_source import TarSource
from big_align.pages.run_report import starts
from big_align.runs import check, dataset
from big_align.tools import command_line

FLICKR8K = "configs/align_flickr8k.py"
TINY = "tests/tiny_config.py"


def test_a_component_by_its_name_is_that_of_a_config_that_names_it():
    chosen = load_config(FLICKR8K, "--config.objective.name=siglip")
    assert chosen.to_dict() == load_config("configs/siglip_flickr8k.py").to_dict()
    assert chosen.is_locked


def test_fields_of_the_former_source_are_dropped_and_those_of_the_new_one_are_there():
    flags = "--config.data.source.name=csv", "--config.data.source.path=my.csv"
    source = load_config(TINY, *flags, "--config.data.source.delimiter=;").data.source.to_dict()
    assert source["path"] == "my.csv" and source["delimiter"] == ";"
    assert source["name"] == "csv" and "split" not in source and source["label"] is None


def test_the_order_of_flags_is_free():
    flags = ["--config.data.source.path=a.npz", "--config.data.source.name", "npz"]
    first = load_config(TINY, *flags)
    assert first.data.source.to_dict() == {"name": "npz", "path": "a.npz"}
    assert first.to_dict() == load_config(TINY, *flags[1:], flags[0]).to_dict()


def test_of_a_field_that_is_given_twice_the_last_counts():
    """A tuple too: `launch.sh "$@"` has its defaults first."""
    rates = "--config.schedule.learning_rate=1", "--config.schedule.learning_rate=2.5"
    locked = "--config.model.locked=('image','text')", "-config.model.locked=('text',)"
    config = load_config(FLICKR8K, *rates, *locked)
    assert config.schedule.learning_rate == 2.5 and config.model.locked == ("text",)


def test_the_home_folder_in_a_flag_is_that_of_the_user(tmp_path, monkeypatch):
    """Shells leave the ~ of --flag=~/path as it is; a new folder of that name is nobody's wish."""
    monkeypatch.setenv("HOME", str(tmp_path))
    fields = "checkpoint.folder", "compilation_cache", "init.all"
    config = load_config(TINY, *(f"--config.{field}=~/{field}" for field in fields))
    found = config.checkpoint.folder, config.compilation_cache, config.init.all
    assert found == tuple(str(tmp_path / field) for field in fields)
    assert expand_home(["main.py", "--workdir=~"]) == ["main.py", f"--workdir={tmp_path}"]
    others = ["--workdir=a~/b", "--config.seed=1", "--config.data.source.path=~b/c", "~/d", "-x=~~"]
    assert expand_home(others) == others


def test_a_flag_changes_the_field_that_it_names_and_no_other():
    """Both evaluators of these images have been given the same dictionary."""
    photographs = "configs/mlcd_photographs.py"
    before = load_config(photographs).to_dict()
    after = load_config(photographs, "--config.evaluators.grocery.source.path=my.tar").to_dict()
    assert after["evaluators"]["grocery"]["source"]["path"] == "my.tar"
    after["evaluators"]["grocery"]["source"]["path"] = before["evaluators"]["grocery_knn"][
        "source"
    ]["path"]
    assert after == before


def test_naming_the_component_that_is_there_changes_nothing():
    same = load_config(TINY, "--config.model.image.name=resnet", "--config.objective.name=align")
    assert same.to_dict() == load_config(TINY).to_dict()


def test_a_tower_keeps_what_fits_it_to_the_tokenizer():
    text = load_config(
        FLICKR8K, "--config.model.text.name=clip_text", "--config.model.text.variant=b"
    ).model.text
    assert (text.vocab_size, text.max_length, text.variant) == (30522, 20, "b")
    assert text.activation == "quick_gelu" and "pool" not in text


def test_an_evaluator_keeps_its_source_and_transform():
    before = load_config(TINY).evaluators.pairs
    after = load_config(TINY, "--config.evaluators.pairs.name=knn").evaluators.pairs
    assert (after.source.to_dict(), after.transform) == (before.source.to_dict(), before.transform)
    assert after.name == "knn" and after.what == "embedding"


def test_evaluators_are_added_and_left_out():
    fields = "name=retrieval", "transform=resize(8)", "source.name=npz", "source.path=a.npz"
    flags = [f"--config.evaluators.own.{field}" for field in fields]
    evaluators = load_config(TINY, *flags, "--config.evaluators.digits={}").evaluators
    assert set(evaluators) == {"own", "pairs"} and evaluators.own.ks == (1, 5, 10)
    source = dict(name="npz", path="a.npz")
    whole = str(dict(name="retrieval", transform="resize(8)", source=source))
    evaluators = load_config(TINY, f"--config.evaluators.own={whole}").evaluators
    assert set(evaluators) == {"own", "pairs", "digits"} and evaluators.own.ks == (1, 5, 10)


def test_a_node_is_emptied_before_it_is_filled():
    fields = "name=knn", "transform=resize(8)", "source.name=npz", "source.path=a.npz"
    flags = [f"--config.evaluators.own.{field}" for field in fields]
    evaluators = load_config(TINY, "--config.evaluators={}", *flags).evaluators
    assert list(evaluators) == ["own"] and evaluators.own.source.path == "a.npz"
    fill = [flag.replace("evaluators.own", "data") for flag in flags[2:]]
    source = load_config(TINY, "--config.data.source={}", *fill).data.source
    assert source.to_dict() == {"name": "npz", "path": "a.npz"}


def test_a_component_of_any_module_can_be_named():
    name = "big_align.objectives.clip:Clip"
    objective = load_config(TINY, f"--config.objective.name={name}").objective.to_dict()
    known = load_config(TINY, "--config.objective.name=clip").objective.to_dict()
    assert objective == known | {"name": name}


@pytest.mark.parametrize("text", ["['a.tar', 'b.tar']", "('a.tar','b.tar')"])
def test_a_list_of_paths_is_one(text):
    flags = "--config.data.source.name=tar", f"--config.data.source.path={text}"
    source = load_config(TINY, *flags).data.source
    assert list(source.path) == ["a.tar", "b.tar"]
    arguments = check_arguments(TarSource, source, "config.data.source")
    assert list(arguments["path"]) == ["a.tar", "b.tar"]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("--config.objective.name=siglp", "--config.objective.name=siglip"),
        ("--config.objective.temprature=0.3", "--config.objective.temperature=0.3"),
        ("--config.data.source.splt=test", "--config.data.source.split=test"),
        ("--config.data.source.name=foldr", "--config.data.source.name=folder"),
        ("--config.evaluators.pairs.kss=(1,)", "--config.evaluators.pairs.ks=(1,)"),
        ("--config.evaluators.own.transform=x", "--config.evaluators.own.name=benchmark"),
    ],
)
def test_a_mistake_prints_the_flag_that_is_right(wrong, right):
    with pytest.raises(ValueError, match="; write ") as error:
        load_config(TINY, wrong)
    written = shlex.split(str(error.value).partition("; write ")[2])
    assert written == [right]
    if "own" not in right:
        load_config(TINY, *written)


def test_a_field_of_the_former_component_is_an_error_when_it_is_set():
    with pytest.raises(ValueError, match="siglip has no field 'label_smoothing'.*leave .* out"):
        load_config(
            TINY, "--config.objective.name=siglip", "--config.objective.label_smoothing=0.1"
        )


def test_what_is_missing_is_a_flag_to_write():
    config = load_config(TINY, "--config.data.source.name=csv")
    with pytest.raises(ValueError, match=r"source.path is missing.*--config.data.source.path=PATH"):
        check.check_config(config)


def test_what_a_source_complains_of_is_a_flag():
    config = load_config(TINY, "--config.data.source.name=tar", "--config.data.source.path=no.tar")
    part = dataset.read_parts(config)["data"]
    with pytest.raises(ValueError, match=r"no file matches 'no.tar'.*; --config.data.source.path="):
        dataset.open_source(part)


def test_a_wrong_type_is_told_with_a_flag_that_is_right():
    config = load_config(TINY)
    with config.unlocked():
        config.objective = dict(config.objective.to_dict(), temperature="warm")
    with pytest.raises(ValueError, match="is not of type float; write ") as error:
        check.check_config(config)
    load_config(TINY, *shlex.split(str(error.value).partition("; write ")[2]))


def test_a_source_beside_a_mixture_is_told_where_it_belongs():
    flag = "--config.data.source.path=a.tar"
    with pytest.raises(ValueError, match="has the parts captions, labels") as error:
        load_config("configs/unicl_flickr8k.py", flag)
    right = shlex.split(str(error.value).partition("; write ")[2])
    assert right == ["--config.data.mixture.captions.source.path=a.tar"]
    assert load_config("configs/unicl_flickr8k.py", *right).data.mixture.captions.source.path
    alone = load_config(
        "configs/unicl_flickr8k.py", "--config.data.mixture={}", "--config.data.source.name=npz",
        "--config.data.source.path=a.npz",
    )  # fmt: skip
    assert list(dataset.part_nodes(alone)) == ["data"]


def test_a_mistake_is_one_line():
    with pytest.raises(ValueError) as error:
        load_config(TINY, "--config.model.image.name=resnest")
    assert re.fullmatch("config.model.image.name = 'resnest' is unknown .*", str(error.value))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("--config.batch-size=8", "; write --config.batch_size=8"),
        ("-config.data.num-threads", "; write -config.data.num_threads=VALUE"),
        ("--config.model.3d=x", "'3d' is no name of a field"),
        ("--config.=x", "'' is no name of a field"),
    ],
)
def test_what_cannot_be_the_name_of_a_field_is_told_with_what_can(wrong, right):
    with pytest.raises(UserError) as error:
        load_config(TINY, wrong)
    assert str(error.value).startswith(f"{wrong}: ") and str(error.value).endswith(right)


def test_a_file_has_no_names_of_the_one_before(tmp_path):
    (tmp_path / "empty.py").write_text("config = {}")
    load_config(TINY)
    with pytest.raises(UserError, match="empty.py: it defines no get_config"):
        load_config(str(tmp_path / "empty.py"))


@pytest.mark.slow
def test_none_is_none_whatever_the_type_of_a_field():
    fields = ("checkpoint.folder", "compilation_cache", "optimizer.clip_norm", "average_decay")
    given = ("--config.checkpoint.folder=there", "--config.optimizer.clip_norm=3")
    before = load_config("configs/quickstart.py", *given, "--config.average_decay=0.5")
    assert (before.checkpoint.folder, before.optimizer.clip_norm) == ("there", 3.0)
    flags = [f"--config.{field}=None" for field in fields]
    config = load_config("configs/quickstart.py", *given, "--config.average_decay=0.5", *flags)
    found = [config.checkpoint.folder, config.compilation_cache, config.optimizer.clip_norm]
    assert [*found, config.average_decay] == [None] * 4
    check.check_config(config)
    for field in ("evaluate_every", "batch_size", "microbatches", "total_steps"):
        config = load_config("configs/quickstart.py", f"--config.{field}=None")
        with pytest.raises(ConfigError, match=f"config.{field} = None must be a whole number"):
            check.check_config(config)
    spelled = load_config("configs/quickstart.py", *given, "--config.checkpoint.folder", "None")
    assert spelled.checkpoint.folder is None
    config = load_config("configs/quickstart.py", "--config.on_divergence=None")
    with pytest.raises(UserError, match="on_divergence = None is unknown.*known: report"):
        check.check_config(config)
    for flag, told in (
        ("optimizer", "it has fields; --config.optimizer={} empties it"),
        ("checkpoint.foldre", "no field 'foldre' .did you mean --config.checkpoint.folder="),
        ("chekpoint.folder", "there is no config.chekpoint"),
    ):
        with pytest.raises(ValueError, match=told):
            load_config("configs/quickstart.py", f"--config.{flag}=None")


def test_a_missing_file_of_a_run_is_told_with_the_folder_it_was_started_in(tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "there")
    starts.record_start(str(tmp_path), {"step": 0})
    given = "there is no file v.txt", f"{tmp_path}/config.json", str(tmp_path)
    assert command_line._tell_folder(*given) == ""
    monkeypatch.chdir(tmp_path / "here")
    told = f"; {tmp_path} was started in {tmp_path}/there: relative paths of its config are from "
    assert command_line._tell_folder(*given).startswith(told)
    assert command_line._tell_folder("k = 0", *given[1:]) == ""
    assert command_line._tell_folder(given[0], "configs/align_l2.py", given[2]) == ""
    assert command_line._tell_folder(*given[:2], str(tmp_path / "here")) == ""
