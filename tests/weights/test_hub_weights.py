"""Models by their names on a hub, which is a server on loopback that speaks its protocol."""

import json
import pathlib
import shutil
import sys

import numpy as np
import pytest
from huggingface_hub import constants

from big_align import weights
from big_align.core.errors import UserError
from big_align.data.remote.hub import HubError
from big_align.runs.workdir import read_pretrained
from big_align.weights.arrays.weight_files import open_weights, write_safetensors
from big_align.weights.hub import download
from big_align.weights.hub.names import parse_name
from tests import hub_server


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder in which no folder has the name of an owner."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def assert_same(one, other):
    assert one.node == other.node and one.preprocessing == other.preprocessing
    assert one.flat.keys() == other.flat.keys()
    for name, array in one.flat.items():
        np.testing.assert_array_equal(array, other.flat[name], err_msg=name)
    assert (one.temperature, one.source) == (other.temperature, other.source)


def list_left(hub):
    """The files in the cache that have their whole names."""
    folder = pathlib.Path(constants.HF_HUB_CACHE)
    return {path.name for path in folder.rglob("snapshots/*/*")}


WEIGHTS = {name: "model.safetensors" for name in ("hf-clip", "hf-bert", "hf-vit", "hf-swin")}
WEIGHTS["open_clip"] = "open_clip_model.safetensors"


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.slow_repeats
def test_a_name_gives_what_its_folder_gives_and_fetches_what_is_read(hub, reference_dir, name):
    folder, files = reference_dir / name, {"README.md": b"# a model", "tf_model.h5": b"other"}
    for number in range(5):  # so many that they are listed on several pages
        files[f"onnx/{number}.onnx"] = b"other"
    repository = hub.add("owner/model", folder, files=files)
    if name == "open_clip":  # as the folder that the test of the format makes
        content = repository.commits[repository.refs["main"]]
        content[WEIGHTS[name]] = content.pop("model.safetensors")
        config = json.loads(content.pop("config.json"))
        content["open_clip_config.json"] = json.dumps(config).encode()
    expected = weights.read(folder)
    for given in ("owner/model", "hf-hub:owner/model", "hf-hub:owner/model@main"):
        assert_same(read_pretrained(given), expected)
    config = "open_clip_config.json" if name == "open_clip" else "config.json"
    assert hub.fetched == {config, WEIGHTS[name]}
    assert len([each for each in hub.log if "/cdn/" in each.path]) == 1  # the others: the cache


def test_a_name_of_a_folder_that_is_here_means_the_folder(hub, reference_dir, tmp_path):
    shutil.copytree(reference_dir / "hf-vit", "owner/model")
    hub.add("owner/model", reference_dir / "hf-bert")
    expected = weights.read(reference_dir / "hf-vit")
    assert_same(read_pretrained("owner/model"), expected)
    assert_same(read_pretrained("local-dir:owner/model"), expected)
    assert not hub.log
    assert read_pretrained("hf-hub:owner/model").description == "bert"
    hub.log.clear()
    with pytest.raises(UserError, match="^owner/other is not here; .* is hf-hub:owner/other$"):
        read_pretrained("owner/other")  # a folder of that owner is here: it is a path
    assert not hub.log


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, reference_dir):
    repository = hub.add("owner/model", reference_dir / "hf-vit")
    first = repository.refs["main"]
    (bert, vit) = (weights.read(reference_dir / name) for name in ("hf-bert", "hf-vit"))
    other = hub.add("owner/other", reference_dir / "hf-bert")
    repository.commit(other.commits[other.refs["main"]])
    repository.refs["v1"] = first
    assert_same(read_pretrained("owner/model"), bert)
    assert_same(read_pretrained("hf-hub:owner/model@v1"), vit)
    assert_same(read_pretrained(f"owner/model@{first}"), vit)
    assert download.fix_revision("owner/model@v1") == f"hf-hub:owner/model@{first}"
    assert download.fix_revision(str(reference_dir)) == str(reference_dir)
    with pytest.raises(HubError, match="^hf-hub:owner/model@v2: the repository has no such revi"):
        read_pretrained("hf-hub:owner/model@v2")


def test_a_pickle_is_fetched_only_where_no_safetensors_are(hub, reference_dir):
    pickles = {"pytorch_model.bin": b"p", "open_clip_pytorch_model.bin": b"p"}
    hub.add("owner/model", reference_dir / "hf-vit", files=pickles)
    read_pretrained("owner/model")
    assert hub.fetched == {"config.json", "model.safetensors"}
    hub.log.clear()
    config = (reference_dir / "hf-vit/config.json").read_bytes()
    hub.add("owner/old", files={"config.json": config, **pickles})
    with pytest.raises(UserError, match="pytorch_model.bin"):  # which is none
        read_pretrained("owner/old")
    assert hub.fetched == {"config.json", "pytorch_model.bin"}


def test_shards_of_weights_are_those_that_the_index_names(hub, reference_dir, tmp_path):
    with open_weights(reference_dir / "hf-vit") as file:
        arrays = {name: file[name] for name in file}
    folder, names, index = tmp_path / "shards", sorted(arrays), {}
    folder.mkdir()
    shutil.copy(reference_dir / "hf-vit/config.json", folder)
    for number in range(2):
        shard = f"model-{number}.safetensors"
        write_safetensors(folder / shard, {name: arrays[name] for name in names[number::2]})
        index |= dict.fromkeys(names[number::2], shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    hub.add("owner/model", folder, files={"model-2.safetensors": b"of nothing"})
    assert_same(read_pretrained("owner/model"), weights.read(reference_dir / "hf-vit"))
    assert hub.fetched == {path.name for path in folder.iterdir()}


def test_an_export_is_fetched_with_its_vocabulary(hub, reference_dir, tmp_path):
    (tmp_path / "pieces.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n")
    vocabulary = {"name": "wordpiece", "vocabulary": str(tmp_path / "pieces.txt"), "length": 8}
    clip = read_pretrained(reference_dir / "hf-clip", vocabulary)
    weights.save(tmp_path / "out", clip, format="big_align")
    hub.add("owner/model", tmp_path / "out", files={"notes.txt": b"other"})
    read = read_pretrained("owner/model")
    assert_same(read, weights.read(tmp_path / "out"))
    assert pathlib.Path(read.tokenizer["vocabulary"]).read_bytes().startswith(b"[PAD]")
    assert hub.fetched == {"config.json", "model.safetensors", "pieces.txt"}


def test_a_download_that_is_cut_leaves_nothing_whole_and_the_next_one_goes_on(
    hub, reference_dir, monkeypatch
):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.add("owner/model", reference_dir / "hf-vit")
    hub.fail("GET /cdn/", times=100, cut_after=0)
    told = "^hf-hub:owner/model: the connection to http.* failed .*; the same command goes on"
    size = (reference_dir / "hf-vit/model.safetensors").stat().st_size
    with pytest.raises(HubError, match=told):
        read_pretrained("hf-hub:owner/model")
    assert list_left(hub) == {"config.json"}
    hub.faults.clear()
    hub.fail("GET /cdn/", cut_after=size // 2)  # once: the library goes on where it was cut
    hub.log.clear()
    assert_same(read_pretrained("hf-hub:owner/model"), weights.read(reference_dir / "hf-vit"))
    parts = [each.range for each in hub.log if "/cdn/" in each.path]
    assert parts == [None, f"bytes={size // 2 // 1000 * 1000}-"]
    assert list_left(hub) == {"config.json", "model.safetensors"}


def test_what_the_hub_refuses_is_told_in_a_line_with_what_mends_it(hub, reference_dir):
    hub.add("owner/gated", reference_dir / "hf-vit").gated = True
    hub.add("owner/private", reference_dir / "hf-vit").private = True
    hub.add("owner/data", files={f"{n}.csv": b"" for n in range(20)})
    hub.add("owner/odd", files={"config.json": b"{}", "model.safetensors": b""})
    hub.add("owner/none", files={"config.json": b'{"model_type": "vit"}', "weights.h5": b""})
    login = r"`hf auth login` or the variable HF_TOKEN gives a token$"
    for name, told in {
        "hf-hub:owner/absent": rf"^hf-hub:owner/absent: .* no such repository \(401\), .*{login}",
        "owner/absent": "^owner/absent is no file or folder here, and hf-hub:owner/absent: .* has",
        "owner/gated": rf"gated: accept its terms on its page; then {login}",
        "owner/private": rf"has no such repository \(401\), or a private one, .*: {login}",
        "owner/data": r"^hf-hub:owner/data has no weights of .*; it has 0.csv, .* and 8 more$",
        "owner/odd": "no weights of .*; it has config.json, model.safetensors$",
        "owner/none": "it has config.json, weights.h5$",
    }.items():
        with pytest.raises(UserError, match=told) as raised:
            read_pretrained(name)
        assert "\n" not in str(raised.value)
    assert not hub.pauses  # no other try would have changed that


def test_a_token_opens_what_is_gated_and_goes_to_no_other_host(hub, reference_dir, monkeypatch):
    hub.add("owner/gated", reference_dir / "hf-vit").gated = True
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    assert_same(read_pretrained("owner/gated"), weights.read(reference_dir / "hf-vit"))
    assert any("/cdn/" in each.path for each in hub.log)  # the server refuses tokens there


@pytest.mark.parametrize("pattern", ["/api/models", "HEAD", "GET /cdn/"])
def test_limits_and_faults_of_the_hub_are_waited_for_and_then_told(hub, reference_dir, pattern):
    expected = weights.read(reference_dir / "hf-vit")
    hub.add("owner/model", reference_dir / "hf-vit")
    hub.fail(pattern, status=429, headers={"Retry-After": "7"})
    assert_same(read_pretrained("owner/model"), expected)
    assert pattern == "HEAD" or max(hub.pauses) >= 7  # this one the library tries again at once
    hub.add("owner/second", reference_dir / "hf-vit", files={"other": b""})
    hub.fail(pattern, times=100, status=429, headers={"Retry-After": "9"})
    with pytest.raises(HubError, match=r"refuses more requests, for 9 seconds \(429\); one with a"):
        read_pretrained("owner/second")
    hub.faults.clear()
    hub.fail(pattern, times=100, status=503)
    hub.add(
        "owner/third", files={"config.json": b'{"model_type": "vit"}', "model.safetensors": b"-"}
    )
    with pytest.raises(HubError, match=r"fails now \(503\); try again later \(tried 5 times"):
        read_pretrained("owner/third")


def test_the_cache_serves_without_a_hub_and_says_what_it_lacks(hub, reference_dir, monkeypatch):
    repository = hub.add("owner/model", reference_dir / "hf-vit")
    hub.add("owner/part", reference_dir / "hf-bert")
    expected = read_pretrained("owner/model")
    download._fetch(parse_name("owner/part"), ["config.json"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.log.clear()
    for given in ("owner/model", f"hf-hub:owner/model@{repository.refs['main']}"):
        assert_same(read_pretrained(given), expected)
    for given in ("owner/part", "owner/absent"):
        with pytest.raises(
            HubError, match="HF_HUB_OFFLINE is set, and the cache, .* fetch it once"
        ):
            read_pretrained(given)
    assert not hub.log
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.fail("", times=1000, status=500)
    assert_same(read_pretrained("owner/model"), expected)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    assert_same(read_pretrained("owner/model"), expected)
    with pytest.raises(HubError, match="the connection to http://127.0.0.1:9 failed"):
        read_pretrained("owner/absent")


def test_names_that_are_nearly_right_are_told_what_would_be_without_a_hub(hub, monkeypatch):
    clip = "hf-hub:openai/clip-vit-base-patch32"
    for given, told in {
        "ViT-B-32": "a repository is named with its owner, as hf-hub:laion/CLIP-ViT-B-32-",
        "clip-vit-base-patch32": f"a repository is named with its owner, as {clip}$",
        "hf-hub:clip-vit-base-patch32": f"must be hf-hub:OWNER/NAME, or .*@REVISION, as {clip}$",
        "hf-hub:a/b/c": "must be hf-hub:OWNER/NAME, or OWNER/NAME@REVISION$",
        "hf://openai/clip": "a repository of Hugging Face's hub is hf-hub:OWNER/NAME$",
        "RN50": "there is no such file or folder; a repository of a hub is hf-hub:OWNER/NAME$",
        "weights/model.safetensors": "there is no such file or folder$",
        "../owner/model": "there is no such file or folder$",
    }.items():
        with pytest.raises((UserError, FileNotFoundError), match=told):
            read_pretrained(given)
    assert not hub.log


def test_without_the_package_a_line_says_what_installs_it(hub, monkeypatch, reference_dir):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"hf-hub:a/b is on .* pip install 'big_align\[hub\]'"):
        read_pretrained("a/b")
    read_pretrained(reference_dir / "hf-vit")
