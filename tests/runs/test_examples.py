"""The examples of docs/extend.md: laws of each, and that the page has them as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.config.overrides import load_config
from big_align.models.dual_encoder import DualEncoder
from big_align.parallel.meshes import make_mesh
from big_align.runs import check, train
from examples.decoupled import Decoupled
from examples.hardest_negative import HardestNegative
from examples.patches import Patches
from examples.squares import COLORS, Squares
from tests.manual import ROOT, read_blocks
from tests.run_main import TINY
from tests.runs.test_labeled_runs import read_metrics

GAP = (
    "--config.evaluators.gap.name=examples.modality_gap:ModalityGap",
    "--config.evaluators.gap.source.name=digits",
    "--config.evaluators.gap.source.split=test",
    "--config.evaluators.gap.transform=resize(10)|central_crop(8)",
)
COMPONENTS = (
    "--config.objective.name=examples.hardest_negative:HardestNegative",
    "--config.data.source.name=examples.squares:Squares",
    "--config.model.image.name=examples.patches:Patches",
    *GAP,
)


def test_the_page_has_the_files_as_they_are():
    blocks = [b.text for b in read_blocks("docs/extend.md") if b.language == "python"]
    files = {path.name: path.read_text().rstrip() for path in ROOT.glob("examples/*.py")}
    assert sorted(files.values()) == sorted(blocks) and len(files) == 5


def test_all_of_them_pass_the_checks_before_a_run():
    config = load_config(TINY, *COMPONENTS, "--config.objective.margin=0.1")
    check.check_config(config)
    assert (config.objective.margin, config.model.image.width) == (0.1, 64)


@pytest.fixture
def objective():
    model = DualEncoder(image=Patches(), text=None)
    return HardestNegative(model, make_mesh(), margin=0.2)


def measure(objective, zimg, ztxt, mask):
    outputs = {"zimg": jnp.float32(zimg), "ztxt": jnp.float32(ztxt)}
    loss, metrics = objective.loss({}, outputs, None, {"mask": jnp.array(mask)})
    return float(loss), float(metrics["kept"])


def test_the_hardest_negative_alone_counts(objective):
    """Of two pairs, with cosines of 0.8 and 0.6; the third is padding."""
    cosines = np.array([[0.8, 0.7, -1.0], [0.1, 0.6, -1.0], [0.9, 0.9, 0.9]])
    loss, kept = measure(objective, cosines, np.eye(3), [True, True, False])
    by_image = max(0, 0.2 + 0.7 - 0.8) + max(0, 0.2 + 0.1 - 0.6)
    by_text = max(0, 0.2 + 0.1 - 0.8) + max(0, 0.2 + 0.7 - 0.6)
    assert loss == pytest.approx((by_image + by_text) / 2) and kept == 0.5


def test_order_and_padding_make_no_difference(objective):
    keys = jax.random.split(jax.random.key(0))
    zimg, ztxt = (np.array(jax.random.normal(key, (8, 4))) for key in keys)
    mask, order = np.arange(8) < 5, np.random.default_rng(0).permutation(8)
    whole = measure(objective, zimg, ztxt, mask)
    assert measure(objective, zimg[order], ztxt[order], mask[order]) == pytest.approx(whole)
    assert measure(objective, zimg[:5], ztxt[:5], mask[:5]) == pytest.approx(whole)


def test_without_the_pair_a_lower_temperature_is_better_until_its_bound():
    """Of two pairs, with cosines of 0.8 and 0.6 and negatives of 0.7 and 0.1; one is padding."""
    objective = Decoupled(DualEncoder(image=Patches(), text=None), make_mesh(), least=0.02)
    cosines = jnp.array([[0.8, 0.7, 0.9], [0.1, 0.6, 0.9], [0.9, 0.9, 0.9]])
    outputs, batch = {"zimg": cosines, "ztxt": jnp.eye(3)}, {"mask": jnp.array([True, True, False])}

    def loss(temperature):
        return objective.loss({"temperature": temperature}, outputs, None, batch)[0]

    value, slope = jax.value_and_grad(loss)(jnp.float32(0.1))
    own, other = (0.8 + 0.6) / 2, (0.7 + 0.1) / 2
    assert float(value) == pytest.approx((other - own) / 0.1, rel=1e-5) and slope > 0
    assert objective.project({"temperature": jnp.float32(-1)})["temperature"] == jnp.float32(0.02)


def test_squares_are_the_same_whenever_they_are_read():
    source = Squares(count=20, size=8)
    for index in range(20):
        first, again = source.read(0, index), source.read(0, index)
        np.testing.assert_array_equal(first.image, again.image)
        assert (first.captions, first.labels) == source.read_text(0, index)
        assert first.captions == [f"a {COLORS[first.label]} square"]
        colors = {tuple(pixel) for pixel in first.image.reshape(-1, 3)}
        assert len(colors) == 2 and (first.image != 128).any(-1).sum() == 16
    assert len({source.read(0, n).image.max((0, 1)).tobytes() for n in range(10)}) > 5


def test_patches_of_an_image_are_apart_before_they_are_mixed():
    tower = Patches(patch=2, width=8)
    image = jax.random.normal(jax.random.key(0), (3, 4, 6, 3))
    (pooled, tokens), _ = tower.init_with_output(jax.random.key(1), image)
    assert pooled.shape == (3, tower.output_dim) and tokens.shape == (3, 6, 8)
    np.testing.assert_allclose(pooled, tokens.mean(1), rtol=1e-6)


@pytest.mark.slow
def test_they_learn_together(tmp_path):
    words = "('a','square'," + ",".join(map(repr, COLORS)) + ")"
    fields = f"tokenizer.words={words}", "total_steps=60", "schedule.learning_rate=1e-2"
    fields += "evaluators.digits={}", "evaluators.pairs={}"
    config = load_config(TINY, *COMPONENTS, *(f"--config.{field}" for field in fields))
    results = train.run(config, str(tmp_path / "run"))
    losses = [row["loss"] for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    assert 0 <= results["gap/gap"] <= 2
