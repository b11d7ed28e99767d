"""Whatever is written to be read again has a number, and one line refuses a newer one."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import big_align
from big_align.config.overrides import load_config
from big_align.core import formats
from big_align.core.errors import UserError
from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.tags.tag_list import read_tag_list
from big_align.pages.run_report.run_record import read_record
from big_align.runs import restore
from big_align.runs.workdir import TrainedRun
from big_align.training.saving.checkpoint import Checkpointer
from big_align.use.search.stores import index_folder, store
from tests.embedding_folder import write_embeddings
from tests.evaluators.tagged import write_tags
from tests.run_main import TINY
from tests.weights.test_native_format import make_pretrained


@struct.dataclass
class State:
    """The least that a checkpoint can hold."""

    step: jnp.ndarray


STATE = State(jnp.int32(3))


def write_checkpoint(folder):
    saved = Checkpointer(str(folder))
    saved.save(STATE, {"seed": 0}, last=True)
    saved.close()


def write_lance_info(folder):
    tables = store.load_module(f"lancedb:{folder}")[0].LanceTables(str(folder), write=True)
    tables.write_info({"generation": 1})


WRITE = {
    "workdir": lambda x: restore.keep_config(str(x), load_config(TINY), 0),
    "checkpoint": write_checkpoint,
    "model folder": lambda x: big_align.save(x, make_pretrained("resnet"), format="big_align"),
    "folder of embeddings or clusters": lambda x: write_embeddings(x, np.ones((2, 3)), (2,)),
    "search index": lambda x: index_folder.write_info(x, dict.fromkeys(index_folder.FIELDS)),
    "search index in LanceDB": write_lance_info,
    "tag list": write_tags,
}
"""Writes what has a format into a folder."""

READ = {
    "workdir": {
        "config.json": lambda x: load_config(str(x / "config.json")),
        "config.json, to continue": lambda x: restore.read_former(str(x)),
        "config.json, to load": TrainedRun,
        "config.json, to show": lambda x: read_record(str(x)),
    },
    "checkpoint": {
        "checkpoints/3/record/metadata": lambda x: Checkpointer(str(x)).restore(STATE, {}),
    },
    "model folder": {"config.json": big_align.load},
    "folder of embeddings or clusters": {"index.json": EmbeddingFolder},
    "search index": {"index.json": index_folder.open_generation},
    "search index in LanceDB": {"": lambda x: store.open_store(f"lancedb:{x}")},
    "tag list": {"tags.json": lambda x: read_tag_list(str(x / "tags.json"))},
}
"""By the file that has the number: what reads it."""


@pytest.mark.parametrize("kind", formats.READ)
def test_a_newer_format_is_one_line(kind, tmp_path, monkeypatch):
    if "LanceDB" in kind:
        pytest.importorskip("lancedb", reason="needs pip install -e '.[lancedb]'")
    newest = formats.READ[kind][-1]
    with monkeypatch.context() as later:
        later.setitem(formats.READ, kind, range(newest, newest + 2))
        later.setattr(formats, "find_version", lambda: "9.8.7")
        WRITE[kind](tmp_path)
    for place, read in READ[kind].items():
        with pytest.raises(UserError) as caught:
            read(tmp_path)
        told = str(caught.value)
        assert told.startswith(f"{'lancedb:' * (not place)}{tmp_path / place.split(',')[0]} has")
        assert f"has format {newest + 1} of a {kind}, written by big_align 9.8.7; this" in told
        assert told.endswith(f"reads up to {newest}: pip install --upgrade big-align")
    if kind == "checkpoint":  # which is not damaged, and must be there for that version
        assert (tmp_path / "checkpoints/3/state").is_dir()


def test_a_number_and_the_version_stand_beside_what_is_written(tmp_path):
    restore.keep_config(str(tmp_path), load_config(TINY), 0)
    written = json.loads((tmp_path / "config.json").read_text())
    assert list(written.items())[:2] == [("format", 1), ("big_align", formats.find_version())]
    assert load_config(str(tmp_path / "config.json")) == load_config(TINY)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"format": 2}, "x has format 2 of a kind; this version, .*, reads 3 and newer ones: make"),
        ({}, "x has format 1 of a kind; "),  # without a number
        ({"format": 9, "big_align": "a\nb" * 99}, r"has format 9 of a kind, written by .{40,60};"),
        ({"format": True}, "x has the format True: no number"),
        ({"format": "big_align"}, "x has the format 'big_align': no number"),
    ],
)
def test_other_numbers(content, message, monkeypatch):
    monkeypatch.setitem(formats.READ, "kind", range(3, 5))
    with pytest.raises(UserError, match=message) as caught:
        formats.check("kind", content, "x")
    assert "\n" not in str(caught.value)
    formats.check("kind", {"format": 3}, "x")
    assert formats.stamp("kind", {"format": 3, "a": 1})["format"] == 4


def test_a_folder_made_by_another_version_is_continued(tmp_path, monkeypatch):
    write_embeddings(tmp_path, np.ones((2, 3)), (2,))
    monkeypatch.setattr(formats, "find_version", lambda: "9.8.7")
    write_embeddings(tmp_path, np.ones((2, 3)), (2,))
    assert not re.search("9.8.7", (tmp_path / "index.json").read_text())
