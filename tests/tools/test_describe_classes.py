import json
import subprocess
import sys

import pytest

from big_align.data.labels.classes import read_classes
from big_align.data.labels.descriptions import read_descriptions
from big_align.tools import describe_classes


def test_word_net_describes_every_class_of_tiny_imagenet(data_dir, tmp_path, capsys):
    classes, output = str(data_dir / "tiny_imagenet" / "classes.json"), str(tmp_path / "out.json")
    arguments = [f"--classes={classes}", f"--output={output}", f"--wordnet={data_dir}/nltk_data"]
    assert describe_classes.main(arguments) == 0
    told = capsys.readouterr().out
    assert told.startswith("202 classes\n     202 by WordNet ids\n") and "Without" not in told
    before, after = read_classes(classes), read_classes(output)
    assert (after.names, after.ids) == (before.names, before.ids)
    assert after.phrases()[0] == "Egyptian cat, a domestic cat of Egypt"
    assert len(set(after.phrases())) == 202
    # What was described needs no dictionary again, and describes a list without ids.
    again = str(tmp_path / "again.json")
    assert describe_classes.main([f"--classes={output}", f"--output={again}"]) == 0
    assert read_classes(again) == after
    assert read_descriptions(output)["Egyptian cat"] == "a domestic cat of Egypt"


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.json", json.dumps),
        ("b.json", lambda ids: json.dumps([{"id": id} for id in ids])),
        ("c.json", lambda ids: json.dumps({"classes": [{"wnid": id} for id in ids]})),
        ("d.csv", lambda ids: "\n".join(["wnid", *ids])),
        ("e.txt", lambda ids: "\n".join(ids)),
    ],
)
def test_wordnet_ids_alone_become_named_and_described_classes(data_dir, tmp_path, name, write):
    """ImageNet-21K is a list of ids: cranes are two classes, and every class has its name."""
    ids = ("n02124075", "n02012849", "n03126707")
    listed, output = tmp_path / name, str(tmp_path / "out.json")
    listed.write_text(write(list(ids)))
    arguments = [f"--classes={listed}", f"--output={output}", f"--wordnet={data_dir}/nltk_data"]
    assert describe_classes.main(arguments) == 0
    classes = read_classes(output)
    assert classes.ids == ids and classes.names == ("Egyptian cat", "crane", "crane")
    assert classes.descriptions[0] == "a domestic cat of Egypt"
    assert classes.descriptions[1].startswith("large long-necked wading bird")
    assert classes.descriptions[2].startswith("lifts and moves heavy objects")
    with pytest.raises(ValueError, match="is a WordNet id and no name, and so are 2 more; python"):
        read_classes(str(listed))


def test_all_ids_of_tiny_imagenet_have_the_names_of_its_list(data_dir, tmp_path):
    listed = read_classes(str(data_dir / "tiny_imagenet" / "classes.json"))
    path, output = tmp_path / "ids.json", str(tmp_path / "out.json")
    path.write_text(json.dumps(listed.ids))
    arguments = [f"--classes={path}", f"--output={output}", f"--wordnet={data_dir}/nltk_data"]
    assert describe_classes.main(arguments) == 0
    assert read_classes(output).names == listed.names


def test_an_id_that_wordnet_has_not_is_named(data_dir, tmp_path, capsys):
    path = tmp_path / "ids.json"
    path.write_text(json.dumps(["n02124075", "n02124076"]))
    arguments = [f"--classes={path}", f"--wordnet={data_dir}/nltk_data"]
    assert describe_classes.main([*arguments, f"--output={tmp_path}/out.json"]) == 1
    assert "'n02124076' is no id of WordNet 3.0" in capsys.readouterr().err


def test_names_templates_and_reports_of_a_list_of_the_package(tmp_path, capsys):
    given, output = tmp_path / "given.csv", str(tmp_path / "out.json")
    rows = [f'{name},"what a {name} is, in short"' for name in read_classes("cifar10").names]
    given.write_text("\n".join(["name,description", *rows, "zebra,not of this list"]))
    arguments = ["--classes=cifar10", f"--descriptions={given}", f"--output={output}"]
    assert describe_classes.main(arguments) == 0
    told = capsys.readouterr().out
    assert "10 by the file of descriptions" in told and "but no class (1):\n  zebra" in told
    described = read_classes(output)
    assert described.templates == read_classes("cifar10").templates
    assert described.phrases()[0] == "airplane, what a airplane is, in short"
    assert describe_classes.main(arguments) == 1
    assert "is there already; --overwrite replaces it" in capsys.readouterr().err
    assert describe_classes.main([*arguments, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classes": "cifar"}, "did you mean 'cifar10'"),
        ({"output": f"{__file__}/x.json"}, "test_describe_classes.py"),
        ({"output": "x.txt"}, "must end in .json"),
        ({"descriptions": "none.json"}, "descriptions none.json cannot be read"),
        ({"descriptions": None}, "nltk.downloader wordnet"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, changed, message):
    given = tmp_path / "given.json"
    given.write_text(json.dumps({name: "x" for name in read_classes("mnist").names}))
    options = {
        "classes": "mnist", "output": str(tmp_path / "out.json"),
        "descriptions": str(given), "wordnet": str(tmp_path), **changed,
    }  # fmt: skip
    arguments = [f"--{name}={value}" for name, value in options.items() if value is not None]
    assert describe_classes.main(arguments) in (1, 2)
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and message in lines[0] and lines[0].startswith("error: ")
    assert not (tmp_path / "out.json").exists()


def test_help_explains_without_loading_a_dictionary():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, big_align.tools.describe_classes as d\n"
         "try: d.main(['--help'])\nfinally: print('nltk' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "--wordnet" in done.stdout and done.stdout.strip().endswith("False")
