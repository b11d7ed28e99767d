"""An objective with an evaluator of its own, written outside of the package, named in a config."""

import sys
import textwrap

import numpy as np
import pytest

from big_align.config.components.signatures import list_given, make
from big_align.config.overrides import load_config
from big_align.core.errors import ConfigError
from big_align.data.sources.digits import DIGIT_WORDS
from big_align.evaluators.retrieval import Retrieval
from big_align.runs import build, check, evaluate, train
from big_align.runs.workdir import read_pretrained
from tests.runs.test_labeled_runs import read_metrics

MODULE = """
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from big_align.data.examples import Source
from big_align.data.labels.classes import ClassList
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.retrieval import Retrieval
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.encoders import TwoTowers


class Pull(ComposedObjective):
    '''Pulls the embeddings of a pair together, and says nothing about other pairs.'''

    def __init__(self, model: DualEncoder, mesh: Mesh, classes: ClassList, strength: float = 1.0):
        super().__init__(TwoTowers(model), mesh)
        self.strength, self.num_classes = strength, len(classes)

    def init(self, rng, batch):
        params, model_state = super().init(rng, batch)
        return params | {"bias": jnp.zeros(self.num_classes)}, model_state

    def loss(self, params, outputs, prepared, batch):
        distance = jnp.square(outputs["zimg"] - outputs["ztxt"]).sum(-1)
        loss = (distance * batch["mask"]).sum() / batch["mask"].sum()
        return self.strength * loss, {"classes": jnp.float32(self.num_classes)}

    def tell_length(self, params, model_state, batch):
        return jnp.linalg.norm(self.embed_image(params, model_state, batch), axis=-1)


class Length:
    '''How long the embeddings of images are.'''

    def __init__(self, source: Source, transform: str, times: int = 1):
        self.source, self.transform, self.times = source, transform, times

    @classmethod
    def needs(cls, settings):
        return ("tell_length",)

    def __call__(self, embedder):
        with EvalLoader(self.source, self.transform, embedder.batch_size, embedder.rows) as loader:
            zimg, real = embedder.embed_images(loader.images(), loader.num_examples)
        return {"length": self.times * float(np.linalg.norm(zimg[real], axis=1).mean())}


class Words:
    @classmethod
    def needs(cls, settings):
        return (settings["verb"],)

    def __init__(self, verb: str):
        self.verb = verb

    def __call__(self, embedder):
        return {"words": 1.0}


class Captions:
    def __init__(self, source: Source):
        self.source = source

    def __call__(self, embedder):
        return {}


def judge(source: Source, transform: str, tokenizer: Tokenizer) -> Retrieval:
    return Retrieval(source, transform, tokenizer)


def measure(source: Source, transform: str):
    return Length(source, transform)
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    (tmp_path / "outside.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    config = load_config("tests/tiny_config.py")
    (tmp_path / "digits.txt").write_text("\n".join(DIGIT_WORDS[:10]))
    config.data.classes = str(tmp_path / "digits.txt")
    config.objective = dict(name="outside:Pull")
    evaluator = dict(config.evaluators.digits, name="outside:Length", times=3)
    fields = "name", "source", "transform", "times"
    config.evaluators = dict(length={field: evaluator[field] for field in fields})
    yield config
    sys.modules.pop("outside", None)


def test_an_evaluator_says_which_way_its_numbers_are_better(config, caplog):
    config.checkpoint.keep_best = "length/length"
    evaluator = build.build_evaluators(config, build.build_tokenizer(config))["length"]
    check.check_keep_best(config, {"length": evaluator})
    assert "'length/length': higher is taken for better, by the number's name" in caplog.text
    caplog.clear()
    evaluator.lower_is_better = ("length",)
    check.check_keep_best(config, {"length": evaluator})
    assert not caplog.records


@pytest.mark.slow
def test_it_is_checked_trained_and_measured(config, tmp_path):
    config.objective.strength = 2.0
    check.check_config(config)
    workdir = tmp_path / "run"
    results = train.run(config, str(workdir))
    np.testing.assert_allclose(results["length/length"], 3, rtol=1e-5)
    losses = [row["loss"] for row in read_metrics(workdir) if "loss" in row]
    assert losses[-1] < 0.5 * losses[0]
    assert evaluate.run(config, str(workdir)) == pytest.approx(results)
    assert read_pretrained(workdir).bias is None  # its own bias is not that of pairs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strenght": 2.0}, r"config.objective.strenght is unknown \(did you mean 'strength'\?\)"),
        ({"strength": "high"}, "config.objective.strength = 'high' is not of type float"),
        ({"name": "outside:Pusl"}, "config.objective.name = 'outside:Pusl' cannot be imported"),
        ({"name": "nowhere:Pull"}, "No module named 'nowhere'"),
        ({"name": "clip"}, "evaluators.length: the objective 'clip' has no method 'tell_length'"),
    ],
)
def test_its_mistakes_are_named(config, change, message):
    config.objective = dict(config.objective.to_dict(), **change)
    with pytest.raises(ConfigError, match=message):
        check.check_config(config)


def test_an_argument_without_a_provider_is_named():
    def component(mesh, oracle, strength: float = 1.0):
        return strength

    assert list_given(component) == ["mesh", "oracle"]
    with pytest.raises(ConfigError, match="here: component needs oracle, which nothing provides"):
        make(component, {}, "here", mesh=None)


def test_fields_are_on_the_command_line(config):
    """What a signature leaves at its default is a field of the config; what is given is none."""
    from big_align.config.defaults import complete_config

    objective = complete_config(config).objective
    assert objective.to_dict() == {"name": "outside:Pull", "strength": 1.0}
    assert config.evaluators.length.times == 3


@pytest.mark.parametrize(("verb", "other"), [("embed_text", "recognize"), ("embed_image", "")])
def test_an_evaluator_need_not_read_images(config, verb, other):
    """One of texts has no image operations; what it calls is checked all the same."""
    config.evaluators = dict(length=dict(name="outside:Words", verb=verb))
    check.check_config(config)
    if other:
        config.evaluators.length.verb = other
        with pytest.raises(ConfigError, match=f"evaluators.length: .* has no method '{other}'"):
            check.check_config(config)
    tokenizer = build.build_tokenizer(config)
    assert build.build_evaluators(config, tokenizer)["length"](None) == {"words": 1.0}
    config.evaluators = dict(captions=dict(name="outside:Captions", source=config.data.source))
    with pytest.raises(ConfigError, match="captions .Captions. has no examples of its own to show"):
        evaluate.choose_retrieval(config, tokenizer)


def test_an_evaluator_may_be_made_by_a_function(config):
    own = {name: config.evaluators.length.to_dict()[name] for name in ("source", "transform")}
    names = {"own": "outside:measure", "pairs": "outside:judge"}
    config.evaluators = {name: own | {"name": target} for name, target in names.items()}
    assert build.find_evaluators(config, Retrieval) == []
    tokenizer = build.build_tokenizer(config)
    assert isinstance(evaluate.choose_retrieval(config, tokenizer, "pairs"), Retrieval)
