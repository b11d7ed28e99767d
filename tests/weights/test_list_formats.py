"""What is told about formats before training is what `save` does afterwards."""

import dataclasses

import numpy as np
import pytest

from big_align import weights
from big_align.core.errors import UserError
from big_align.weights import api
from big_align.weights.formats.pretrained import Pretrained, make_zeros
from big_align.weights.tables import mapping
from tests.weights.test_open_clip_towers import LITE, MEAN, make_pair, make_pretrained
from tests.weights.tiny_pairs import BERT, CLIP_TEXT, CLIP_VIT, EFFICIENTNET

FAST = tuple(name for name in api.FORMATS if name not in api.MADE_OF)
TEXT_OF_CLIP = "resnet and clip's text"
ALIGN = {"projection_bias": True, "image_projection": False}


def outline(pretrained, **changes):
    return dataclasses.replace(pretrained, variables=make_zeros(pretrained.variables), **changes)


def drop_text(pretrained):
    params = {k: v for k, v in pretrained.variables["params"].items() if "text" not in k}
    variables = dict(pretrained.variables) | {"params": params}
    return dataclasses.replace(
        pretrained, node=dict(pretrained.node) | {"text": None}, variables=variables
    )


def make_models(tmp_path):
    """Returns models of every kind, by name, and those that something is wrong with."""
    (tmp_path / "vocab.txt").write_text("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] a".split()))
    wordpiece = {"name": "wordpiece", "vocabulary": str(tmp_path / "vocab.txt"), "length": 9}
    seen = weights.Preprocessing.from_transform("resize(40)|resize(32)", (0.0,) * 3, (1.0,) * 3)
    vit, swin, resnet = map(make_pair, ("vit and bert", "swin and roberta", TEXT_OF_CLIP))
    return {"vit and bert": vit, "swin and roberta": swin, TEXT_OF_CLIP: resnet} | {
        "clip": make_pretrained(CLIP_VIT, CLIP_TEXT, 32, {}),
        "wide images": dataclasses.replace(resnet, image_size=(32, 64), preprocessing=None),
        "other operations": dataclasses.replace(vit, preprocessing=seen),
        "no vocabulary": dataclasses.replace(vit, tokenizer=wordpiece | {"vocabulary": "nowhere"}),
        "pieces of words": dataclasses.replace(vit, tokenizer=wordpiece),
        "images": swin.tower("image"),
        "texts": swin.tower("text"),
        "images and their projection": drop_text(swin),
    }


def make_efficientnets():
    return {
        "align": make_pretrained(EFFICIENTNET, BERT, 32, ALIGN),
        "align with a mean": make_pretrained(LITE, MEAN, 32, {"projection_bias": True}),
        "lite": make_pair("efficientnet and bert"),
    }


def check_told(pretrained, formats, folder):
    """Compares what is told with what happens; returns the formats that hold the model."""
    told = api.list_formats(outline(pretrained))
    assert told.keys() == api.FORMATS.keys()
    for name in formats:
        try:
            api.save(folder / name, pretrained, format=name)
        except UserError as error:
            assert told[name] and told[name].removesuffix("...") in " ".join(str(error).split())
        else:
            assert told[name] == ""
    return {name for name in formats if not told[name]}


def test_save_does_what_was_told(tmp_path):
    swin = make_pair("swin and roberta")
    assert check_told(swin, FAST, tmp_path / "dual") == {"big_align", "open_clip"}
    towers = {"big_align", "timm", "transformers"}
    assert check_told(swin.tower("image"), FAST, tmp_path / "image") == towers


@pytest.mark.slow
def test_save_does_what_was_told_of_every_kind(tmp_path):
    held = {
        name: check_told(model, FAST, tmp_path / name)
        for name, model in make_models(tmp_path).items()
    }
    dual = {"big_align", "open_clip"}
    assert held["swin and roberta"] == held["vit and bert"] == held[TEXT_OF_CLIP] == dual
    assert held["pieces of words"] == dual | {"sentence_transformers"}
    assert held["clip"] == dual | {"transformers"}
    assert held["wide images"] == held["other operations"] == {"big_align"}
    towers = {"big_align", "timm", "transformers"}
    assert held["images"] == held["images and their projection"] == towers
    assert held["texts"] == {"big_align", "transformers"}
    assert held["no vocabulary"] == set()


@pytest.mark.slow
def test_save_does_what_was_told_of_efficientnets(tmp_path):
    models = make_efficientnets().items()
    held = {name: check_told(model, FAST, tmp_path / name) for name, model in models}
    assert held == {
        "align": {"big_align", "transformers"},
        "align with a mean": {"big_align"},
        "lite": {"big_align", "open_clip"},
    }


@pytest.mark.slow
def test_programs_are_written_if_it_was_told(tmp_path):
    models = make_models(tmp_path)
    for name in ("vit and bert", "wide images", "images", "no vocabulary"):
        check_told(models[name], api.MADE_OF, tmp_path / name)


def test_no_array_is_made_and_nothing_is_said(monkeypatch, caplog):
    pretrained = outline(make_pair(TEXT_OF_CLIP), bias=-9.5)
    flat = pretrained.flat.values()
    assert {stride for array in flat for stride in array.strides} == {0}
    monkeypatch.setattr(mapping, "to_theirs", None)
    seen = weights.Preprocessing(48, 60)  # open_clip resizes to 48, and says so
    told = api.list_formats(dataclasses.replace(pretrained, preprocessing=seen))
    assert told["open_clip"] == "" and not caplog.text


def test_a_line_tells_where_a_model_and_its_towers_go():
    assert api.tell_formats(make_pair("vit and bert")) == (
        "exports: the whole model to big_align, open_clip, jax_export; its image tower to timm; "
        "its text tower to transformers"
    )
    alone = api.tell_formats(make_pair("swin and roberta").tower("text"))
    assert alone == "exports: the whole model to big_align, transformers, jax_export"


def test_what_goes_nowhere_says_so(monkeypatch):
    monkeypatch.setattr(api, "list_formats", lambda model: dict.fromkeys(api.FORMATS, "no"))
    assert api.tell_formats(make_pair("vit and bert")) == "exports: none"


def test_zeros_have_the_types_of_what_they_stand_for():
    made = make_zeros({"a": np.ones((3, 2), np.int32), "b": {"c": np.ones((), np.float32)}})
    assert made["a"].shape == (3, 2) and made["a"].dtype == np.int32 and not made["a"].any()
    assert isinstance(Pretrained({"name": "vit"}, made, 8).variables, dict)
