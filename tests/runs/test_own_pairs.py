"""One's own pairs in any layout, by their path alone; every number is of these pairs."""

import os
import shlex

import fsspec
import jax
import numpy as np
import pytest

import big_align
from big_align.config.components.source_flags import open_source, write_source_flags
from big_align.config.overrides import load_config
from big_align.core.errors import UserError
from big_align.data.text.tokenizers import SPECIAL_TOKENS
from big_align.runs import build, check, dataset, train
from big_align.tools import build_vocab
from tests.data import layouts
from tests.data.samples import encode_image, make_members, make_pixels, write_tar

OWN = "configs/own_pairs.py"
SHORT = ("--config.total_steps=2", "--config.batch_size=8", "--config.schedule.warmup_steps=0")


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """A folder with a tar file of 160 pairs, which tells its commands as a user would."""
    monkeypatch.chdir(tmp_path)
    members = [m for number in range(160) for m in make_members(number)]
    return write_tar(tmp_path / "pairs.tar", members)


def own_config(tmp_path, pairs, *flags):
    root = __file__.rpartition("/tests/")[0]
    vocabulary = f"--config.tokenizer.vocabulary={tmp_path}/made/vocabulary.txt"
    return load_config(f"{root}/{OWN}:{pairs},start=scratch,size=cores", vocabulary, *flags)


def test_a_missing_vocabulary_is_told_with_the_command_that_makes_it(tmp_path, pairs, capsys):
    config = own_config(tmp_path, pairs)
    with pytest.raises(ValueError, match="there is no file .*vocabulary.txt; this makes") as error:
        build.build_tokenizer(config)
    words = shlex.split(str(error.value).partition("python -m ")[2])
    assert words[0] == "big_align.tools.build_vocab"
    assert build_vocab.main(words[1:]) == 0
    tokenizer = build.build_tokenizer(config)
    assert tokenizer.vocab_size <= config.model.text.vocab_size
    text, mask = tokenizer(["number 17"])
    assert 1 not in text[mask]  # no unknown piece


def test_a_vocabulary_in_a_bucket_is_read_there_and_made_here(tmp_path, pairs):
    path = f"memory://{tmp_path.name}/vocabulary.txt"
    config = own_config(tmp_path, pairs, f"--config.tokenizer.vocabulary={path}")
    with pytest.raises(ValueError, match=f"no file {path}; .*, to be copied there: ") as error:
        build.build_tokenizer(config)
    words = shlex.split(str(error.value).partition("python -m ")[2])
    assert words[-1] == "--output=vocabulary.txt"
    pieces = [*SPECIAL_TOKENS, "number"]
    fsspec.filesystem("memory").pipe(path, "\n".join(pieces).encode())
    assert build.build_tokenizer(config).vocab_size == len(pieces)


def test_a_missing_vocabulary_of_a_trained_text_tower_is_not_one_to_make(tmp_path, pairs):
    """Its ids would mean other pieces than those that the tower has learned."""
    for field in ("text", "all"):
        config = own_config(tmp_path, pairs, f"--config.init.{field}=bert")
        told = rf"vocabulary.txt; it has to be that of the text tower, config.init.{field} = 'bert'"
        with pytest.raises(ValueError, match=told) as error:
            build.build_tokenizer(config)
        assert "build_vocab" not in str(error.value)


def test_a_vocabulary_is_that_of_all_parts_and_of_nothing_that_is_held_out(tmp_path, pairs):
    """Both parts hold out the same images: keys say which."""
    root = __file__.rpartition("/tests/")[0]
    flags = [
        f"--config={root}/{OWN}:start=scratch",
        "--config.data.source={}",
        "--config.data.hold_out=0.5",
    ]
    for name, caption in (("long", "txt"), ("short", "json.captions")):
        fields = f"weight=0.5 source.name=tar source.path={pairs} source.caption={caption}"
        flags += [f"--config.data.mixture.{name}.{field}" for field in fields.split()]
    config = load_config(flags[0].partition("=")[2], *flags[1:])
    parts = dataset.read_parts(config).values()
    sources = [dataset.open_source(part) for part in parts]
    numbers = [{s.key(0, n) for n in range(int(s.shard_sizes[0]))} for s in sources]
    assert numbers[0] == numbers[1] and 40 < len(numbers[0]) < 120
    assert build_vocab.main([*flags, f"--output={tmp_path}/v.txt", "--size=400"]) == 0
    learned = set((tmp_path / "v.txt").read_text().split())
    whole = {str(number) for number in range(160)} & learned
    seen = {str(int(key)) for key in numbers[0]} | set("0123456789")
    assert "number" in learned and whole <= seen


@pytest.mark.parametrize("count", [20, 40, 80, 160, 320])
def test_a_batch_is_no_larger_than_what_is_trained_on(count, tmp_path):
    """Keys decide which are held out: of 160, with these, more than the fifth that is expected."""
    root, kept = __file__.rpartition("/tests/")[0], []
    for prefix in "abcdefgh":
        members = [
            (f"{prefix}{name}", data) for n in range(count) for name, data in make_members(n)
        ]
        path = write_tar(tmp_path / f"{prefix}.tar", members)
        config = load_config(f"{root}/{OWN}:{path},start=scratch,size=cores")
        (part,) = dataset.read_parts(config).values()
        kept.append(int(dataset.open_source(part).shard_sizes.sum()))
        assert kept[-1] / 4 <= config.batch_size <= kept[-1]
    assert min(kept) < 0.8 * count < max(kept)


def test_what_a_config_names_can_be_written_as_flags(pairs):
    source, node = open_source(pairs, "tar", ["caption=json.captions", "label=cls"])
    words = shlex.split(write_source_flags(node))
    path, name, *arguments = (word.partition("=")[2] for word in words)
    other, again = open_source(path, name, arguments)
    assert again == node and source.read(0, 3) == other.read(0, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [layouts.csv_of_rows, layouts.coco, layouts.files, layouts.tar_of_lines]
)
def test_each_layout_becomes_a_model_by_its_path_alone(layout, tmp_path, capsys):
    """It opens in transformers and in open_clip, and one command searches with it."""
    node = layout(tmp_path / "x")
    path = node["path"] if isinstance(node["path"], str) else node["path"][0]
    fields = [f"{k}={v}" for k, v in node.items() if k not in ("name", "path")]
    argument = ",".join([path, "start=scratch", "size=cores", *fields])
    config = load_config(f"{OWN}:{argument}", *SHORT)
    assert f"source={node['name']}" in capsys.readouterr().out
    results = train.run(config, str(tmp_path / "run"))
    assert {name.partition("/")[0] for name in results} == {"retrieval"}
    model = big_align.load(tmp_path / "run")
    for format in ("transformers", "open_clip"):
        big_align.save(tmp_path / format, model, format=format)
        again = big_align.load(tmp_path / format)
        np.testing.assert_allclose(
            again.embed_texts(["a dog"]), model.embed_texts(["a dog"]), atol=1e-6
        )
        np.testing.assert_allclose(
            again.embed_images(layouts.IMAGES[:2]),
            model.embed_images(layouts.IMAGES[:2]),
            atol=1e-5,
        )


@pytest.mark.slow
def test_a_model_of_another_library_is_trained_on_and_stays_what_it_is(tmp_path, pairs):
    """Its towers, tokenizer, colors and image operations; a laptop leaves its image tower alone."""
    flags = "--config.total_steps=2", "--config.batch_size=8"
    train.run(load_config(f"{OWN}:{pairs},start=scratch,size=cores", *flags), str(tmp_path / "a"))
    given = big_align.load(tmp_path / "a")
    big_align.save(tmp_path / "clip", given, format="transformers")
    config = load_config(f"{OWN}:{pairs},start={tmp_path}/clip,size=cores", *flags)
    results = train.run(config, str(tmp_path / "b"))
    assert "retrieval/text_to_image_r1" in results
    tuned = big_align.load(tmp_path / "b")
    assert tuned.image_size == given.image_size and tuned.tokenizer["name"] == "wordpiece"
    assert tuned.preprocessing.transform == given.preprocessing.transform
    before, after = (model.variables["params"]["image"] for model in (given, tuned))
    jax.tree.map(np.testing.assert_array_equal, after, before)
    assert np.abs(tuned.embed_texts(["a"]) - given.embed_texts(["a"])).max() > 1e-6
    big_align.save(tmp_path / "again", tuned, format="transformers")


@pytest.fixture
def classes(tmp_path):
    """A folder for each class."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(40):
            image = encode_image(make_pixels(number))
            (tmp_path / "photos" / name / f"{number}.png").write_bytes(image)
    return tmp_path / "photos"


@pytest.mark.slow
def test_folders_of_classes_become_a_model_that_names_them(tmp_path, classes):
    config = load_config(f"{OWN}:{classes},start=scratch,size=cores", *SHORT)
    results = train.run(config, str(tmp_path / "run"))
    assert 0 <= results["zero_shot/top1"] <= 1 and results["zero_shot/top1_chance"] == 0.5


def test_what_is_trained_follows_the_number_of_pairs(pairs):
    """More pairs never make smaller batches, nor fewer examples that are seen."""
    for start in ("pretrained", "scratch,size=cores", "scratch,size=gpu", "scratch,size=pod"):
        seen = batch = 0
        for count in (10, 150, 160, 1000, 7000, 100_000, 10_000_000):
            config = load_config(f"{OWN}:{pairs},pairs={count},start={start}")
            assert batch <= config.batch_size <= count
            assert config.batch_size * config.total_steps >= seen
            assert 0 < config.schedule.warmup_steps <= config.total_steps / 4
            assert 1 <= config.data.hold_out * count <= 50_000
            batch, seen = config.batch_size, config.batch_size * config.total_steps
            if first := config.get("first"):
                assert first.data.hold_out == config.data.hold_out
                assert first.batch_size <= count


def test_texts_are_trained_where_it_pays(pairs, classes):
    few, many = (load_config(f"{OWN}:{pairs},pairs={n}") for n in (999, 1000))
    assert not few.get("first") and few.model.locked == ("image", "text")
    assert many.first and many.model.locked == ("image",)
    assert few.evaluators and many.evaluators and not many.first.evaluators
    named = load_config(f"{OWN}:{classes},pairs=100000")
    assert not named.get("first") and named.objective.name == "unicl"
    assert list(named.evaluators) == ["zero_shot"]


def test_some_more_pairs_do_not_change_what_a_checkpoint_must_agree_with(pairs):
    few, more = (load_config(f"{OWN}:{pairs},pairs={n}") for n in (5000, 5500))
    assert (few.data.hold_out, few.batch_size) == (more.data.hold_out, more.batch_size)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nothing/", r"nothing/: there is no such file or folder"),
        (",start=scratch,size=cpu", r"size = 'cpu' is unknown.*; known: cores, gpu, pod"),
        (",pairs=0", r"pairs=0 must be a number above 0"),
        (",source=files", r"there is no path; it comes first"),
        (
            ",sise=gpu",
            r"sise=gpu is not one of start=.*; size=cores\|gpu\|pod; pairs=PAIRS",
        ),
        ("{pairs},source=tarr", r"source.*'tarr'.*did you mean 'tar'"),
        ("{pairs},captoin=txt", r"captoin.*did you mean 'caption'"),
        ("{images}", r"its images have no texts: put a .txt file of the same name beside each"),
        ("{texts}", r"it has texts, and no images"),
        ("{shards}", r"is a folder; write .*\*.tar"),
    ],
)
def test_what_is_no_set_of_pairs_is_told_in_a_line(argument, message, tmp_path, pairs):
    for name in ("images", "shards"):
        (tmp_path / name).mkdir()
    (tmp_path / "images" / "a.png").write_bytes(encode_image(make_pixels(0)))
    (tmp_path / "captions.txt").write_text("a dog\na cat\n")
    os.link(pairs, tmp_path / "shards" / "x.tar")
    places = {"pairs": pairs, "texts": tmp_path / "captions.txt"}
    places |= {name: tmp_path / name for name in ("images", "shards")}
    with pytest.raises(UserError, match=message) as error:
        load_config(f"{__file__.rpartition('/tests/')[0]}/{OWN}:{argument.format(**places)}")
    assert "--source" not in str(error.value) and "\n" not in str(error.value)


def test_a_config_without_pairs_says_where_their_path_goes():
    config = load_config(f"{OWN}:start=scratch")  # which needs no packages of weights
    with pytest.raises(UserError, match=r"the config needs your pairs.* --config=own_pairs.py:ph"):
        build.make_loader(config)


def test_what_the_evaluators_lack_is_told_before_training(tmp_path, pairs):
    config = own_config(tmp_path, pairs, "--config.data.source.caption=")
    right = "--config.data.source.caption=CAPTION"
    with pytest.raises(ValueError, match=f"reads no caption: pairs.tar: 0000.*; write {right}"):
        build.build_evaluators(config, check.BlankTokenizer(config.tokenizer))


def test_a_source_without_the_field_is_not_told_to_set_it(classes):
    flags = "--config.data.source.name=folder", f"--config.data.source.path={classes}"
    config = load_config(f"{OWN}:start=scratch,size=cores", *flags)
    told = r"reads no caption: .* has none; --config.evaluators.NAME=\{\} leaves an evaluator out"
    with pytest.raises(ValueError, match=told):
        build.build_evaluators(config, check.BlankTokenizer(config.tokenizer))
