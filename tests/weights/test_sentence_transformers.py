"""How sentence-transformers pools a text stands in its folder; a tower does the same."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from big_align import weights
from big_align.core.errors import UserError, WeightFileError, WeightsMismatch
from big_align.tools import convert
from big_align.use.inference.loaded_model import LoadedModel
from big_align.weights.arrays.weight_files import open_weights
from big_align.weights.formats import architecture
from tests.models.applied import apply_model
from tests.models.drawn_variables import draw_variables

NODE = dict(name="bert", width=16, depth=1, mlp_dim=24, heads=2, vocab_size=11, max_length=9)
CLIP_TEXT = dict(name="clip_text", width=16, depth=1, mlp_dim=24, heads=2, max_length=9)
IMAGE = dict(name="resnet", variant="18", width=8, depths=(1, 1), stem="small")
SENTENCES = ["a b c", "", "a b c d e f g a b c d e f g", "g"]
IDS = jnp.asarray([[2, 5, 3, 0, 0], [2, 7, 8, 9, 3]], jnp.int32)
TEXTS = IDS, IDS > 0


@pytest.fixture
def folder(tmp_path):
    """A folder of transformers, to which sentence-transformers' files are added."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefg"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = {"name": "wordpiece", "vocabulary": str(tmp_path / "vocab.txt"), "length": 9}
    node = NODE | {"variant": "base", "pool": "cls"}
    variables = draw_variables(architecture.make_model(node), *TEXTS)
    weights.save(tmp_path / "text", weights.Pretrained(node, variables, tokenizer=tokenizer))
    return tmp_path / "text"


def add(folder, modules=("Transformer", "Pooling", "Normalize"), length=None, **modes):
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    listed = [
        {"idx": i, "name": str(i), "path": paths.get(kind, kind), "type": f"st.models.{kind}"}
        for i, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    if length:
        content = json.dumps({"max_seq_length": length})
        (folder / "sentence_bert_config.json").write_text(content)


def embed(loaded):
    return [np.asarray(x) for x in loaded.model.apply(loaded.variables, *TEXTS)]


@pytest.mark.parametrize(
    "modes",
    [
        {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False},
        {"pooling_mode": "mean"},
    ],
)
def test_the_mean_is_over_real_tokens_where_the_folder_says_so(folder, modes):
    first, tokens = embed(weights.read(folder))
    np.testing.assert_array_equal(first, tokens[:, 0])  # transformers' folder says nothing
    add(folder, word_embedding_dimension=16, **modes)
    pooled, same = embed(weights.read(folder))
    np.testing.assert_array_equal(same, tokens)
    expected = np.stack([tokens[0, :3].mean(0), tokens[1].mean(0)])
    np.testing.assert_allclose(pooled, expected, atol=1e-6)


def test_cls_is_taken_where_the_folder_says_so(folder):
    add(folder, pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    pooled, tokens = embed(weights.read(folder))
    np.testing.assert_array_equal(pooled, tokens[:, 0])


def test_texts_are_cut_off_where_the_folder_says_so(folder):
    assert weights.read(folder).tokenizer["length"] == 9
    add(folder, length=6, pooling_mode_mean_tokens=True)
    assert weights.read(folder).tokenizer["length"] == 6
    add(folder, length=600, pooling_mode_mean_tokens=True)
    assert weights.read(folder).tokenizer["length"] == 9
    add(folder, length=-1, pooling_mode_mean_tokens=True)
    with pytest.raises(WeightFileError, match="max_seq_length = -1 must be above 0"):
        weights.read(folder)


def test_what_goes_out_pools_as_it_did(folder, tmp_path):
    add(folder, length=6, pooling_mode_mean_tokens=True)
    first = weights.read(folder)
    weights.save(tmp_path / "out", first)
    again = weights.read(tmp_path / "out")
    assert again.node == first.node and again.node["pool"] == "mean"
    assert again.tokenizer["length"] == 6
    np.testing.assert_array_equal(embed(again)[0], embed(first)[0])
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling"]


@pytest.mark.parametrize(
    ("modules", "modes", "message"),
    [
        (("Transformer", "Pooling", "Dense"), {"pooling_mode_mean_tokens": True}, "has Dense; a t"),
        (("Transformer",), {}, "has no Pooling"),
        (("Transformer", "Pooling"), {"pooling_mode_max_tokens": True}, "max_tokens'], which"),
        (("Transformer", "Pooling"), {"pooling_mode": "lasttoken"}, "'lasttoken', which a text"),
        (("Transformer", "Pooling"), {}, "pools by None"),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "pools by .*cls_token', 'pooling_mode_mean_tokens'], which",
        ),
    ],
)
def test_what_a_tower_does_not_do_is_refused(folder, modules, modes, message):
    add(folder, modules, **modes)
    with pytest.raises(WeightsMismatch, match=message):
        weights.read(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}", "is not a JSON list"), ("[1]", "1 is no module"), ("[", "is not JSON")],
)
def test_a_damaged_list_of_modules_is_named(folder, text, message):
    add(folder, pooling_mode_mean_tokens=True)
    (folder / "modules.json").write_text(text)
    with pytest.raises(WeightFileError, match=f"modules.json.*{message}"):
        weights.read(folder)


@pytest.mark.interop
def test_the_mean_is_that_of_transformers_outputs(folder):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    add(folder, pooling_mode_mean_tokens=True)
    pooled, _ = embed(weights.read(folder))
    model = transformers.AutoModel.from_pretrained(folder).eval()
    ids, mask = (torch.from_numpy(np.array(x)).long() for x in TEXTS)
    with torch.no_grad():
        states = model(ids, attention_mask=mask).last_hidden_state
    real = mask[..., None].float()
    expected = (states * real).sum(1) / real.sum(1)
    np.testing.assert_allclose(pooled, expected.numpy(), atol=1e-5)


def make_dual(tmp_path, pool, bias=True, tokenizer="wordpiece"):
    """Returns a dual encoder, ready for use; a pool that is no pool is a tower of CLIP's."""
    path, node = tmp_path / "vocabulary", NODE | {"variant": "base", "pool": pool}
    if pool == "lasttoken":
        others = "".join(f"x{number} y\n" for number in range(48893))  # CLIP has as many in all
        path.write_text(f"#version: 0.2\na b</w>\n{others}")
        tokenizer, node = {"name": "clip", "merges": str(path), "length": 9}, CLIP_TEXT
    elif tokenizer == "wordpiece":
        path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefg"]))
        tokenizer = {"name": "wordpiece", "vocabulary": str(path), "length": 9}
    node = dict(image=IMAGE, text=node, embedding_dim=12, image_projection=True)
    node["projection_bias"] = bias
    variables = draw_variables(architecture.make_model(node), jnp.zeros((2, 16, 16, 3)), *TEXTS)
    made = weights.Pretrained(node, variables, image_size=16, tokenizer=tokenizer, temperature=0.1)
    return LoadedModel.of(made)


def read_projection(folder):
    """Reads the projection, and leaves a folder without it, which is a tower's."""
    with open_weights(folder / "2_Dense/model.safetensors") as opened:
        arrays = {name: np.array(opened[name]) for name in opened}
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["type"].split(".")[-1] for module in modules] == [
        *("Transformer", "Pooling", "Dense", "Normalize"),
    ]
    rest = [module for module in modules if "Dense" not in module["type"]]
    (folder / "modules.json").write_text(json.dumps(rest))
    return arrays


@pytest.mark.parametrize(
    "pool, bias",
    [
        *(("mean", True), ("lasttoken", False)),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in (("mean", False), ("cls", True), ("cls", False), ("lasttoken", True))
        ),
    ],
)
def test_the_projection_goes_out_with_its_text_tower(tmp_path, pool, bias):
    model, out = make_dual(tmp_path, pool, bias), tmp_path / "out"
    weights.save(out, model, "sentence_transformers")
    modes = json.loads((out / "1_Pooling/config.json").read_text())
    assert [name for name, value in modes.items() if value is True] == [
        {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}.get(
            pool, "pooling_mode_lasttoken"
        )
    ]
    with pytest.raises(WeightsMismatch, match="modules.json has Dense; a text tower is"):
        weights.read(out)
    arrays = read_projection(out)
    assert ("linear.bias" in arrays) == bias
    tower = weights.read(out)
    ids, mask = map(jnp.asarray, model.tokenize(SENTENCES))
    pooled, _ = apply_model(tower.model, tower.variables, ids, mask)
    ztxt = np.asarray(pooled) @ arrays["linear.weight"].T + arrays.get("linear.bias", 0)
    ztxt /= np.linalg.norm(ztxt, axis=1, keepdims=True)
    np.testing.assert_allclose(ztxt, model.embed_texts(SENTENCES), atol=1e-6)


def test_a_text_tower_alone_goes_out_at_unit_length_without_a_projection(tmp_path):
    tower = make_dual(tmp_path, "cls").tower("text")
    weights.save(tmp_path / "out", tower, "sentence_transformers")
    assert not (tmp_path / "out/2_Dense").exists()
    modules = json.loads((tmp_path / "out/modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"]
    again = weights.read(tmp_path / "out")
    np.testing.assert_array_equal(embed(again)[0], embed(tower)[0])


def test_the_command_tells_whether_the_projection_is_there(tmp_path, capsys):
    weights.save(tmp_path / "model", make_dual(tmp_path, "mean"), "big_align")
    written = {}
    for name, format, more in (
        ("whole", "sentence_transformers", []),
        ("part", "sentence_transformers", ["--part=text"]),
        ("tower", "transformers", ["--part=text"]),
    ):
        given = [f"--input={tmp_path / 'model'}", f"--output={tmp_path / name}"]
        assert convert.main([*given, f"--format={format}", *more]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert first.startswith(f"{tmp_path / name}, for {format}: bert, ")
        assert "wordpiece" in first
        written[name] = {
            str(each.relative_to(tmp_path / name)): each.read_bytes()
            for each in (tmp_path / name).rglob("*")
            if each.is_file() and each.name != "README.md"  # which has the name of the folder
        }
        if name == "tower":
            assert second.startswith("Without the projection") and "=sentence_tr" in second
        else:
            assert second.startswith("With the projection")
    assert written["whole"] == written["part"] != written["tower"]
    given = [f"--input={tmp_path / 'model'}", f"--output={tmp_path / 'image'}", "--part=image"]
    assert convert.main([*given, "--format=sentence_transformers"]) == 1
    assert "it has none for texts" in capsys.readouterr().err


def test_a_model_without_texts_or_their_tokenizer_is_refused(tmp_path):
    out = tmp_path / "out"
    model = make_dual(tmp_path, "mean", tokenizer={"name": "words", "words": ("a",), "length": 4})
    with pytest.raises(WeightsMismatch, match="wordpiece, clip, roberta; the model's is 'words'"):
        weights.save(out, model, "sentence_transformers")
    with pytest.raises(WeightsMismatch, match="the model's is None"):
        unknown = dataclasses.replace(model, tokenizer=None)
        weights.save(out, unknown, "sentence_transformers")
    params = {k: v for k, v in model.variables["params"].items() if "text" not in k}
    untrained = dataclasses.replace(model, variables=model.variables | {"params": params})
    with pytest.raises(UserError, match="has not trained its text tower"):
        weights.save(out, untrained, "sentence_transformers")
    with pytest.raises(UserError, match="tower for images, it has none for texts"):
        weights.save(out, model.tower("image"), "sentence_transformers")
    assert not out.exists()


@pytest.mark.interop
@pytest.mark.parametrize("pool", ["mean", "cls", "lasttoken"])
def test_the_library_embeds_texts_as_the_model_does(tmp_path, request, pool):
    library = pytest.importorskip("sentence_transformers")
    model = make_dual(tmp_path, pool)
    if pool == "lasttoken":  # transformers wants CLIP's own merges
        text = request.getfixturevalue("data_dir") / "text"
        merges = str(text / "clip_bpe_simple_vocab_16e6.txt.gz")
        model = dataclasses.replace(model, tokenizer=model.tokenizer | {"merges": merges})
    weights.save(tmp_path / "out", model, "sentence_transformers")
    opened = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert opened.max_seq_length == 9
    np.testing.assert_allclose(opened.encode(SENTENCES), model.embed_texts(SENTENCES), atol=1e-5)
