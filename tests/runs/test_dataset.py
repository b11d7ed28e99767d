"""Parts of the data: what their labels count into, what a checkpoint remembers, what is refused."""

import contextlib
import json
import shutil

import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from big_align.core.errors import CheckpointMismatch, ConfigError, UserError
from big_align.data.sources.digits import DIGIT_CLASSES, DIGIT_TEMPLATES
from big_align.runs import build, dataset, train
from big_align.training.saving.checkpoint import Checkpointer
from big_align.training.state import TrainState
from tests import labeled_digits, tiny_config
from tests.labeled_digits import get_config

CAPTIONS = {"source": {"name": "digits", "split": "train"}, "weight": 0.5}
TABLE = {"name": "embedding_table", "vocab_size": 10, "width": 8}
NAMES_ALONE = {"templates": ("{}",)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Config nodes of sources and paths of class lists."""
    root = tmp_path_factory.mktemp("files")
    (root / "header.csv").write_text("image,label\n")
    return {
        "shard": labeled_digits.write_shard(root / "digits.tar"),
        "folders": labeled_digits.write_folders(root / "folders"),
        "table": labeled_digits.write_table(root / "holes.csv", ["1", "2", ""] * 10),
        "no_rows": {"name": "csv", "path": str(root / "header.csv"), "label": "label"},
        "names": labeled_digits.write_names(root / "names.json"),
        "nine": labeled_digits.write_names(root / "nine.json", DIGIT_CLASSES[:9]),
        "described": labeled_digits.write_names(
            root / "described.json", [{"name": n, "description": f"a {n}"} for n in DIGIT_CLASSES]
        ),
        "nameless": labeled_digits.write_names(root / "nameless.json", (*DIGIT_CLASSES[:9], "")),
    }


def labels_of(files, **more):
    return {"source": files["shard"], "classes": files["names"], "weight": 0.5} | more


def read_parts(**mixture):
    return dataset.read_parts({"data": {"mixture": mixture}})


def fingerprint(**mixture):
    parts = dataset.fingerprint_parts(read_parts(**mixture))
    assert json.loads(json.dumps(parts)) == parts
    return parts


@pytest.mark.parametrize("make_node", [dict, ConfigDict])
def test_labels_are_offset_in_the_order_of_names_and_shared_by_a_list(files, make_node):
    """A ConfigDict forgets the order in which it was written; so nothing depends on it."""
    nine = labels_of(files, classes=files["nine"])
    written = {"pairs": CAPTIONS, "c": nine, "b": labels_of(files), "a": nine}
    for mixture in (written, dict(reversed(written.items()))):
        parts = dataset.read_parts(make_node({"data": {"mixture": mixture}}))
        offsets = [(name, part.label_offset) for name, part in parts.items()]
        assert offsets == [("a", 0), ("b", 9), ("c", 0), ("pairs", 0)]
        assert dataset.all_classes(parts).names == DIGIT_CLASSES[:9] + DIGIT_CLASSES
    assert dataset.all_classes(read_parts(pairs=CAPTIONS)) is None


def test_a_source_may_bring_its_own_names(files, tmp_path):
    other = labeled_digits.write_folders(tmp_path, names=[f"big_{n}" for n in DIGIT_CLASSES])
    parts = read_parts(
        one={"source": files["folders"], "classes": "source", "weight": 0.5},
        two={"source": other, "classes": "source", "weight": 0.5},
    )
    names = tuple(sorted(DIGIT_CLASSES))
    assert parts["one"].classes.names == names
    assert parts["two"].classes.names == tuple(f"big {name}" for name in names)
    assert [part.label_offset for part in parts.values()] == [0, 10]


def test_a_class_list_is_matched_by_name(files, tmp_path):
    """Folders are sorted, the list is in the order of the digits, and one folder is missing."""
    path = labeled_digits.write_folders(tmp_path, names=DIGIT_CLASSES)["path"]
    shutil.rmtree(f"{path}/{DIGIT_CLASSES[4]}")
    node = {"source": {"name": "folder", "path": path}, "classes": files["names"], "weight": 1.0}
    source = dataset.open_source(read_parts(all=node)["all"])
    for shard, size in enumerate(source.shard_sizes.tolist()):
        for n in range(size):
            folder = source.key(shard, n).split("/")[-2]
            assert DIGIT_CLASSES[source.read(shard, n).label] == folder
    assert source.class_names == DIGIT_CLASSES


def test_the_labels_of_a_batch_are_those_of_the_joined_list(files):
    """Every digit has its own number in each list, and pairs have none."""
    mixture = {
        "pairs": CAPTIONS | {"weight": 0.25},
        "a_folder": {"source": files["folders"], "classes": "source", "weight": 0.5},
        "b_listed": labels_of(files, weight=0.25),
    }
    config = get_config("unicl", {"mixture": mixture, "templates": ("{}",)})
    tokenizer = build.build_tokenizer(config)
    with build.build_train_loader(config, tokenizer) as loader:
        batch = loader.batch(0)
    classes = dataset.all_classes(dataset.read_parts(config))
    named = batch["label"] >= 0
    ids, _ = tokenizer([classes.names[label] for label in batch["label"][named]])
    assert (batch["text"][named] == ids).all()
    assert [(batch["label"] // 10 == block).sum() for block in (-1, 0, 1)] == [4, 8, 4]


def test_the_fingerprint_tells_weights_names_and_lists(files):
    pairs, labels = CAPTIONS, labels_of(files)
    seen = [
        fingerprint(pairs=pairs, labels=labels),
        fingerprint(pairs=pairs, other=labels),
        fingerprint(pairs=pairs | {"weight": 0.25}, labels=labels | {"weight": 0.75}),
        fingerprint(pairs=pairs, labels=labels | {"classes": files["nine"]}),
        fingerprint(data=pairs | {"weight": 1.0}),
        dataset.fingerprint_parts(dataset.read_parts({"data": CAPTIONS})),
    ]
    assert all(one != other for n, one in enumerate(seen) for other in seen[:n])
    assert fingerprint(labels=labels, pairs=pairs) == seen[0]


@pytest.mark.parametrize("field", ["seed", "batch_size"])
def test_a_checkpoint_is_not_continued_with_another_seed_or_batch_size(field, tmp_path):
    config = tiny_config.get_config()
    tokenizer = build.build_tokenizer(config)
    with contextlib.closing(Checkpointer(str(tmp_path))) as checkpointer:
        array = jnp.zeros(())
        record = build.describe_run(config, tokenizer)
        checkpointer.save(TrainState(jnp.int32(1), array, array, array, array), record)
        config[field] += 8
        with pytest.raises(CheckpointMismatch, match=f"{field} = "):
            checkpointer.restore({}, build.describe_run(config, tokenizer))


def test_a_checkpoint_is_not_continued_with_another_mixture(files, tmp_path):
    """The record is compared before anything else of a checkpoint is read."""
    pairs, labels = CAPTIONS, labels_of(files)
    parts = dataset.fingerprint_parts(read_parts(pairs=pairs, labels=labels))
    checkpointer = Checkpointer(str(tmp_path))
    array = jnp.zeros(())
    checkpointer.save(TrainState(jnp.int32(1), array, array, array, array), parts)
    for mixture, differs in (
        ({"pairs": pairs | {"weight": 0.25}}, "parts = .*'config.data.mixture.pairs': 0.5"),
        ({"pairs": pairs, "labels": labels | {"classes": files["nine"]}}, "classes = "),
    ):
        with pytest.raises(CheckpointMismatch, match=differs):
            checkpointer.restore({}, fingerprint(**mixture))
    checkpointer.close()


def classes_alone(files, **data):
    """UniCL with an embedding a class; the tokenizer knows names alone."""
    fields = {"tokenizer": {"name": "class_names", "classes": files["names"]}, "model.text": TABLE}
    return "unicl", labels_of(files) | data, fields


def mixed(files, pairs=CAPTIONS, **labels):
    return "unicl", {"mixture": {"pairs": pairs, "labels": labels_of(files) | labels}}, {}


def evaluated(files, objective, name, **more):
    node = {"name": name, "source": files["shard"], "transform": "resize(8)"} | more
    return objective, labels_of(files), {"evaluators": {"test": node}}


# From a name of a case to what is wrong and the line that says so.
REFUSED = {
    "a label outside the list": (
        lambda f: ("unicl", labels_of(f, classes=f["nine"]), {}),
        "config.data: digits.tar: 0009 has the label 9, which is not in the class list",
    ),
    "no label": (
        lambda f: ("unicl", labels_of(f, source=f["table"]), {}),
        "config.data: holes.csv, line 4 has no label, and a class list of 10 is set",
    ),
    "a class without a name": (
        lambda f: ("unicl", labels_of(f, classes=f["nameless"]), {}),
        "config.data.classes: class list .*nameless.json, entry 9: has no name",
    ),
    "an unknown list": (
        lambda f: ("unicl", labels_of(f, classes="imagenett"), {}),
        "config.data.classes: class list 'imagenett' .*did you mean 'imagenet'?",
    ),
    "a folder that the list lacks": (
        lambda f: ("unicl", labels_of(f, source=f["folders"], classes=f["nine"]), {}),
        "config.data.source: label 3 is 'nine', which is no class of config.data.classes",
    ),
    "names that a source does not have": (
        lambda f: ("unicl", labels_of(f, classes="source"), {}),
        "config.data.classes = 'source', but a source 'tar' has no names of its own",
    ),
    "an empty table": (
        lambda f: ("unicl", labels_of(f, source=f["no_rows"]), {}),
        "config.data.source: .*header.csv has no line after the names of the columns",
    ),
    "an empty folder": (
        lambda f: ("unicl", labels_of(f, source={"name": "folder", "path": "/nowhere"}), {}),
        "config.data.source: no image at /nowhere",
    ),
    "weights do not sum": (
        lambda f: mixed(f, weight=0.75),
        "config.data.mixture: the weights must sum to 1 and sum to 1.25: labels 0.75, pairs 0.5",
    ),
    "no weight": (
        lambda f: mixed(f, weight=None),
        "config.data.mixture.labels.weight is missing",
    ),
    "no row": (
        lambda f: mixed(f, pairs=CAPTIONS | {"weight": 0.99}, weight=0.01),
        "config.data.mixture: batch_size is 16 and gives no row to labels",
    ),
    "no source": (
        lambda f: mixed(f, source={}),
        "config.data.mixture.labels.source is missing",
    ),
    "an unknown field of a part": (
        lambda f: mixed(f, clases=1),
        "config.data.mixture.labels.clases is unknown",
    ),
    "threads of a part": (
        lambda f: mixed(f, num_threads=2),
        "config.data.mixture.labels.num_threads: all parts share config.data.num_threads",
    ),
    "images of two sizes": (
        lambda f: mixed(f, transform="resize(9)"),
        r"shape of image is \(9, 9, 3\) in labels and \(8, 8, 3\) in pairs",
    ),
    "a source beside the mixture": (
        lambda f: ("unicl", {"source": f["shard"], "mixture": {"pairs": CAPTIONS}}, {}),
        "config.data.source is not used beside config.data.mixture",
    ),
    "no classes": (
        lambda f: ("iclip", {"source": f["shard"]}, {}),
        "config.objective.name = 'iclip' needs classes",
    ),
    "one view": (
        lambda f: ("supcon", labels_of(f), {}),
        "supcon needs at least two views .* set config.data.views_per_image = 2",
    ),
    "two views for nothing": (
        lambda f: ("unicl", labels_of(f, views_per_image=2), {}),
        "config.data.views_per_image = 2, but the objective 'unicl' takes one view",
    ),
    "mixing views": (
        lambda f: ("supcon", labels_of(f, views_per_image=2), {"mixing.mixup_alpha": 0.8}),
        "have several views, which cannot be mixed: set config.data.views_per_image = 1",
    ),
    "unicl without texts": (
        lambda f: ("unicl", labels_of(f), {"model.text": {}}),
        "config.model.text is None, but texts are to be encoded",
    ),
    "iclip without texts": (
        lambda f: ("iclip", labels_of(f), {"model.text": {}}),
        "config.model.text is None, but texts are to be encoded",
    ),
    "a template without a place": (
        lambda f: ("unicl", labels_of(f, templates=("a photo",)), {}),
        "config.data: template 'a photo' needs one {} where the class name goes",
    ),
    "class texts with descriptions that nobody has written": (
        lambda f: ("iclip", labels_of(f), {"objective.template": "{}, {description}"}),
        "config.objective: class list .*: 10 of 10 classes have no description, 'zero' the first",
    ),
    "labels with descriptions that nobody has written": (
        lambda f: ("unicl", labels_of(f, templates=("{}, {description}",)), {}),
        "config.data: class list .*: 10 of 10 classes have no .* --classes=.* writes a list with",
    ),
    "an evaluator that asks as the run is trained": (
        lambda f: (
            "unicl",
            labels_of(f, templates=("{}, {description}",), classes=f["described"]),
            evaluated(f, "unicl", "zero_shot", names=f["names"])[2],
        ),
        "config.evaluators.test: class list .*: 10 of 10 classes have no description",
    ),
    "class names in a sentence": (
        lambda f: classes_alone(f, templates=("{}", "a {}")),
        "config.data: 'a zero' is not the name of one class .* names are used alone",
    ),
    "captions as class names": (
        lambda f: classes_alone(f, mixture=mixed(f, **NAMES_ALONE)[1]["mixture"], source={}),
        "'.+' is not the name of one class .* names are used alone",
    ),
    "class names in the sentence of an evaluator": (
        lambda f: (
            *classes_alone(f, **NAMES_ALONE)[:2],
            classes_alone(f)[2] | evaluated(f, "unicl", "zero_shot", names=f["names"])[2],
        ),
        "config.evaluators.test: 'a photo of a zero.' is not the name of one class",
    ),
    "an evaluator of texts without texts": (
        lambda f: evaluated(f, "cross_entropy", "zero_shot", names=f["names"]),
        "config.evaluators.test: config.objective.name = 'cross_entropy' has no text side",
    ),
    "an evaluator of a classifier without one": (
        lambda f: evaluated(f, "unicl", "classification"),
        "config.evaluators.test: the objective 'unicl' has no method 'classify'; evaluate it with",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line_before_anything_is_compiled_or_written(
    case, files, tmp_path, monkeypatch
):
    make, message = REFUSED[case]
    objective, data, fields = make(files)
    monkeypatch.setattr(train, "build_program", lambda *_, **__: pytest.fail("it went on"))
    data = {name: value for name, value in data.items() if name != "weight"}
    config = get_config(objective, data, **fields)
    with pytest.raises(UserError, match=message) as error:
        train.run(config, str(tmp_path / "run"))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_part_that_is_no_node_is_named():
    with pytest.raises(ConfigError, match="config.data.mixture.pairs = 'digits' must be a node"):
        read_parts(pairs="digits")


def test_templates_are_those_of_the_part_and_else_of_the_data(files):
    parts = dataset.read_parts(
        {
            "data": {
                "templates": DIGIT_TEMPLATES,
                "mixture": {"one": labels_of(files), "two": labels_of(files, **NAMES_ALONE)},
            }
        }
    )
    assert parts["one"].loader["templates"] == DIGIT_TEMPLATES
    assert parts["two"].loader["templates"] == ("{}",)
