"""How sentence-transformers pools a text stands in its folder; a tower does the same."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from big_align import interop
from big_align.errors import WeightFileError, WeightsMismatch
from big_align.interop.formats import architecture
from tests.models.drawn_variables import draw_variables

NODE = dict(name="bert", width=16, depth=1, mlp_dim=24, heads=2, vocab_size=11, max_length=9)
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
    interop.save(tmp_path / "text", interop.Pretrained(node, variables, tokenizer=tokenizer))
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
    first, tokens = embed(interop.load(folder))
    np.testing.assert_array_equal(first, tokens[:, 0])  # transformers' folder says nothing
    add(folder, word_embedding_dimension=16, **modes)
    pooled, same = embed(interop.load(folder))
    np.testing.assert_array_equal(same, tokens)
    expected = np.stack([tokens[0, :3].mean(0), tokens[1].mean(0)])
    np.testing.assert_allclose(pooled, expected, atol=1e-6)


def test_cls_is_taken_where_the_folder_says_so(folder):
    add(folder, pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    pooled, tokens = embed(interop.load(folder))
    np.testing.assert_array_equal(pooled, tokens[:, 0])


def test_texts_are_cut_off_where_the_folder_says_so(folder):
    assert interop.load(folder).tokenizer["length"] == 9
    add(folder, length=6, pooling_mode_mean_tokens=True)
    assert interop.load(folder).tokenizer["length"] == 6
    add(folder, length=600, pooling_mode_mean_tokens=True)
    assert interop.load(folder).tokenizer["length"] == 9
    add(folder, length=-1, pooling_mode_mean_tokens=True)
    with pytest.raises(WeightFileError, match="max_seq_length = -1 must be above 0"):
        interop.load(folder)


def test_what_goes_out_pools_as_it_did(folder, tmp_path):
    add(folder, length=6, pooling_mode_mean_tokens=True)
    first = interop.load(folder)
    interop.save(tmp_path / "out", first)
    again = interop.load(tmp_path / "out")
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
        interop.load(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}", "is not a JSON list"), ("[1]", "1 is no module"), ("[", "is not JSON")],
)
def test_a_damaged_list_of_modules_is_named(folder, text, message):
    add(folder, pooling_mode_mean_tokens=True)
    (folder / "modules.json").write_text(text)
    with pytest.raises(WeightFileError, match=f"modules.json.*{message}"):
        interop.load(folder)


@pytest.mark.interop
def test_the_mean_is_that_of_transformers_outputs(folder):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    add(folder, pooling_mode_mean_tokens=True)
    pooled, _ = embed(interop.load(folder))
    model = transformers.AutoModel.from_pretrained(folder).eval()
    ids, mask = (torch.from_numpy(np.array(x)).long() for x in TEXTS)
    with torch.no_grad():
        states = model(ids, attention_mask=mask).last_hidden_state
    real = mask[..., None].float()
    expected = (states * real).sum(1) / real.sum(1)
    np.testing.assert_allclose(pooled, expected.numpy(), atol=1e-5)
