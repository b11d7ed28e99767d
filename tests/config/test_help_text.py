"""--help lists every field of a config with its type, its value and a line, and what is right."""

import re
import subprocess
import sys

import pytest
from ml_collections import ConfigDict

from big_align.config.components.docstrings import read_arguments, read_summary
from big_align.config.config_files import FIELDS, list_packaged
from big_align.config.fields import OWN, describe_fields
from big_align.config.help_text import WIDTH, format_fields
from big_align.config.overrides import load_config
from big_align.config.places import list_nodes
from big_align.configs import common
from big_align.core.nodes import find_node
from tests.run_main import ROOT, environment

TINY = "tests/tiny_config.py"


@pytest.mark.parametrize("name", list_packaged())
def test_every_field_is_listed_with_its_type_value_and_line(name):
    config = load_config(name)
    text = format_fields(config)
    assert max(map(len, text.splitlines())) <= WIDTH
    for place in list_nodes(config):
        fields = describe_fields(config, place)
        node = find_node(config, place) if place else config
        assert set(fields) == {
            field for field, value in node.items()
            if not isinstance(value, ConfigDict) or field == "compiler_options"
        }  # fmt: skip
        for field, found in fields.items():
            assert found.kinds and (found.line or field == "name"), f"{place}.{field}"
            kinds = [*found.kinds, *([int] if float in found.kinds else [])]
            kinds += [ConfigDict] if dict in kinds else []
            assert node[field] is None or isinstance(node[field], tuple(kinds)), f"{place}.{field}"
    assert text.count("=") >= sum(len(describe_fields(config, p)) for p in list_nodes(config))


def test_a_component_stands_with_what_it_is_and_its_values():
    text = format_fields(load_config(TINY, "--config.model.text.dropout=0.25"))
    heading = r"\n--config.model.text.FIELD: bert\. BERT .*\n  name=bert  .*one of bert,"
    assert re.search(heading, text)
    assert re.search(r"\n  dropout=0.25 +\(float\) rate on embeddings", text)
    assert re.search(r"\n  compilation_cache=None +\(str\) a folder", text)


def test_the_fields_of_the_run_are_those_of_the_base_of_all_configs():
    base = common.get_base()
    for place, (kind, _) in OWN.items():
        if "*" not in place:
            above, _, field = place.rpartition(".")
            node = find_node(base, above) if above else base
            assert isinstance(node[field], kind | ConfigDict | None), place
    assert set(base) == FIELDS
    for place in list_nodes(base):
        undescribed = [k for k, x in describe_fields(base, place).items() if not x.kinds]
        assert undescribed == [], place


def test_arguments_are_read_from_docstrings_of_functions_classes_and_groups():
    def function(first: int, second: str):
        """Does it.

        And more.

        Args:
          first: what comes
            first: always.
          second: the other.

        Returns:
          third: nothing.
        """

    assert read_arguments(function) == {
        "first": "what comes first: always.", "second": "the other."
    }  # fmt: skip
    assert read_summary(function) == "Does it."


def run(*words):
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment(1), capture_output=True, text=True
    )


@pytest.mark.slow
def test_help_is_printed_by_the_program_and_by_tools(tmp_path):
    plain = run("main.py", "--help")
    assert plain.returncode == 0 and not plain.stderr
    assert "--mode=train|eval" in plain.stdout
    assert "quickstart, siglip_flickr8k" in " ".join(plain.stdout.split())
    module = run("-m", "big_align", "-h", "--config=quickstart", "--config.seed=7")
    assert module.returncode == 0 and module.stdout.startswith(plain.stdout.partition("With")[0])
    assert "Fields of quickstart:\n\n--config.FIELD\n" in module.stdout
    assert re.search(r"\n  seed=7 +\(int\) ", module.stdout)
    (tmp_path / "config.json").write_text(load_config(TINY).to_json_best_effort())
    tool = run("-m", "big_align.tools.show_retrieval", "--help", f"--workdir={tmp_path}")
    assert tool.stdout.startswith("Draws what a trained model retrieves")
    assert "--nearest=5" in tool.stdout and "total_steps=8" in tool.stdout
    wrong = run("main.py", "--help", "--config=quickstart", "--config.sede=7")
    assert wrong.returncode == 2 and "did you mean --config.seed=" in wrong.stderr
