"""What recognition and Tag2Text add to a contrastive training step (IDEA §4.5), in FLOPs and time.

    python benchmarks/idea_step.py                       # needs no data; minutes on two cores
    python benchmarks/idea_step.py --rounds=0            # FLOPs alone

FLOPs are those of ViT-B/16 at 256 pixels and BERT-base over 40 tokens, 2500 tags, as XLA counts
them in the lowered program: nothing of that size is compiled or run. Times are of the small config,
whole steps (gradients and update), the three in turn; medians.

Predicted before anything was measured. A forward pass of the image tower is 23.0 G products of two
numbers (46.1 GFLOP), 257 tokens by 12 layers of 12 x 768^2 and the attention between them; the
paper says 22.42. ML-Decoder: 256 tokens by 3 x 768^2, 100 queries by 2 x 768^2 and 2 x 768 x 2048,
and their attention, 0.93 G: 4.0% of the image tower, where the paper has 3.88%. The paper's number
leaves the texts out on both sides. With a text of 40 tokens a caption, 6.9 GFLOP, a step of
contrast alone is 52.9 GFLOP a pair and direction of three; recognition adds 3.5% to it. Tag2Text
encodes a second text of the same fixed length, whether it exists or not: 13% more, 16.5% in all.

In the small config the image tower costs some 30 MFLOP, a text of 24 tokens 6 and a decoder of
width 128 about 25: there recognition is expected to add 60 to 80% of the FLOPs and Tag2Text 15 to
20%, and the time to follow less than that, as products of the decoder run nearer to a large one's
rate than the convolutions of the tower.

Bound of a time: the FLOPs of that step at the rate of a large matrix product in the same run.

The step moves nothing between host and device: it runs under `jax.transfer_guard("disallow")`,
which refuses transfers that a call needs and, but on CPU, results that are fetched; and the
compiled program is searched for callbacks, infeeds, outfeeds, sends and receives, which the guard
does not see. A program with a callback shows that the search finds one.
"""

import argparse
import functools
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from benchmarks import measuring
from big_align.config.components.models import build_model
from big_align.config.components.signatures import make
from big_align.config.components.transforms import shape_of_image
from big_align.config.overrides import load_config
from big_align.data.tags.tag_list import TagList, pad_tokens, weigh
from big_align.models.bert import Bert
from big_align.models.dual_encoder import DualEncoder
from big_align.models.vit import ViT
from big_align.objectives.idea import Idea
from big_align.parallel.batches import place_batch
from big_align.parallel.meshes import make_mesh
from big_align.runs import build
from big_align.runs.check import BlankTokenizer
from big_align.training.state import describe_state
from big_align.training.step import compile_step, make_train_step

STEPS = {
    "contrast alone": {"recognition": False},
    "with recognition": {"tag_to_text": False},
    "with Tag2Text": {},
}
LADDER = ("contrast", "recognition", "tag_to_text", "retain")
HOST = re.compile(r"callback|\b(?:infeed|outfeed|send|recv)(?:-done)?\(")
GIVEN = 4
"""Tags of a caption."""


def make_tags(count: int, vocabulary: int) -> TagList:
    """Makes a tag list of one to three tokens a tag, of falling frequency."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, vocabulary, 1 + n % 3).tolist() for n in range(count)]
    counts = np.maximum(100_000 // np.arange(1, count + 1), 1)
    names = tuple(f"tag {n}" for n in range(count))
    return TagList("", names, counts, weigh(counts), *pad_tokens(rows), tokenizer="")


def describe_batch(rows: int, size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a batch."""
    shapes = {
        "image": ((rows, size, size, 3), np.uint8),
        "text": ((rows, length), np.int32),
        "text_mask": ((rows, length), bool),
        "label": ((rows,), np.int32),
        "mask": ((rows,), bool),
        "tags": ((rows, GIVEN), np.int32),
    }
    return {name: jax.ShapeDtypeStruct(*each) for name, each in shapes.items()}


def fill_batch(shapes: dict[str, jax.ShapeDtypeStruct], tags: int) -> dict[str, np.ndarray]:
    """Makes a batch of noise, with different tags for each row."""
    rng = np.random.default_rng(0)
    batch = {k: np.ones(x.shape, x.dtype) for k, x in shapes.items()}
    for name, highest in (("image", 256), ("text", 1000), ("tags", tags)):
        batch[name] = rng.integers(1, highest, shapes[name].shape).astype(shapes[name].dtype)
    return batch


def make_objective(model, mesh, tags, tokenizer, settings):
    """Makes the objective from the fields that a config has."""
    given = {"model": model, "mesh": mesh, "tags": tags, "tokenizer": tokenizer}
    return make(Idea, settings, "config.objective", **given)


def make_step(objective: Idea, batch: dict, mesh: Mesh):
    """Makes the train step of an objective, and what describes and makes its state."""
    optimizer = optax.adamw(1e-3)
    described, create = describe_state(objective, optimizer, batch, mesh)
    return make_train_step(objective, optimizer, mesh), described, create


def count_flops(lowered: jax.stages.Lowered) -> float:
    """Returns the FLOPs of a program as it was written."""
    return lowered.cost_analysis()["flops"]


def measure_flops(options: argparse.Namespace) -> None:
    """Prints the FLOPs of the paper's model."""
    mesh = make_mesh(devices=jax.devices()[:1])
    length = 40
    model = DualEncoder(
        image=ViT(variant="b/16"),
        text=Bert(variant="base", vocab_size=30522, max_length=length),
        embedding_dim=256,
        image_projection=True,
    )
    tokenizer = BlankTokenizer({"name": "wordpiece", "length": length})
    tags = make_tags(options.tags, 30522)
    batch = describe_batch(options.paper_batch, 256, length)
    whole = {}
    for name, settings in STEPS.items():
        objective = make_objective(model, mesh, tags, tokenizer, settings)
        step, described, _ = make_step(objective, batch, mesh)
        whole[name] = count_flops(jax.jit(step).lower(described, batch)) / options.paper_batch
    state = described.params, described.model_state
    tower, recognizer = (
        count_flops(jax.jit(verb).lower(*state, batch)) / options.paper_batch
        for verb in (objective.image_features, objective.recognize)
    )
    first = whole["contrast alone"]
    rows = [(f"step {name}", x / 1e9, f"{x / first - 1:+.2%}", "") for name, x in whole.items()]
    rows.append(("image tower, forward", tower / 1e9, "", "2 x 22.42"))
    added = f"{recognizer / tower - 1:+.2%}"
    rows.append(("with the recognizer", recognizer / 1e9, added, "+3.88%"))
    title = f"ViT-B/16, 256 pixels, BERT-base, {length} tokens, {len(tags)} tags"
    measuring.print_table(("", "GFLOP a pair", "added", "the paper"), rows, title)


def host_operations(compiled: jax.stages.Compiled) -> int:
    """Counts the lines of a compiled program that speak to the host."""
    lines = (line.split(", metadata=")[0] for line in compiled.as_text().splitlines())
    return sum(bool(HOST.search(line)) for line in lines)


def check_search() -> None:
    """Makes sure that a callback is found by `host_operations`."""

    def ask(x):
        return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    assert host_operations(jax.jit(ask).lower(jnp.ones(3)).compile()) > 0


def measure_times(options: argparse.Namespace) -> None:
    """Prints the times of the small config, in turn, and whether anything is transferred."""
    config = load_config(options.config)
    mesh, model = build.build_mesh(config), build_model(config)
    tokenizer = BlankTokenizer(config.tokenizer)
    tags = make_tags(options.small_tags, config.model.text.vocab_size)
    size = shape_of_image(config.data.transform, "config.data.transform")[0]
    shapes = describe_batch(options.batch or config.batch_size, size, tokenizer.length)
    batch = place_batch(fill_batch(shapes, len(tags)), mesh)
    given = {k: v for k, v in config.objective.items() if k not in ("name", "change_step", *LADDER)}
    steps, states, on_cpu = {}, {}, jax.default_backend() == "cpu"
    for name, settings in STEPS.items():
        objective = make_objective(model, mesh, tags, tokenizer, given | settings)
        step, _, create = make_step(objective, batch, mesh)
        states[name] = create()
        steps[name] = compile_step(step, states[name], batch, mesh)
    found = []

    def run(name: str) -> None:
        with jax.transfer_guard("disallow"):
            for _ in range(options.steps):
                states[name], metrics = steps[name](states[name], batch)
            jax.block_until_ready((states[name], metrics))
        found[:] = [metrics]

    matmul, product = measuring.make_matmul("float32" if on_cpu else "bfloat16")
    calls = {name: functools.partial(run, name) for name in steps}
    seconds = measuring.time_in_turns({"matmul": matmul} | calls, options.rounds)
    rate = product / seconds.pop("matmul")
    texts = float(found[0]["images_with_new_text"])  # of the last step of the ladder
    flops = {name: compiled.cost_analysis()["flops"] for name, compiled in steps.items()}
    first = next(iter(STEPS))

    def describe(name: str) -> tuple:
        taken, count = seconds[name] / options.steps, flops[name]
        added = f"{seconds[name] / seconds[first] - 1:+.1%}", f"{count / flops[first] - 1:+.1%}"
        bound, host = 1e3 * count / rate, host_operations(steps[name])
        return name, 1e3 * taken, added[0], f"{count / 1e9:.2f}", added[1], bound, host

    title = f"{options.config}, batch {len(batch['mask'])}, {len(tags)} tags, "
    title += f"{measuring.describe_device()}; large matrix product {rate / 1e9:.1f} GFLOP/s; "
    title += f"{texts:.0%} of images with new text"
    columns = "step", "ms", "added", "GFLOP", "added", "bound (ms)", "host operations"
    measuring.print_table(columns, map(describe, steps), title)
    print('all ran under jax.transfer_guard("disallow")')


def main() -> None:
    """Prints the tables."""
    given = dict(config="configs/idea_flickr8k.py", tags=2500, paper_batch=1024, small_tags=500)
    parser = measuring.make_parser(__doc__, **given)
    add = parser.add_argument
    add("--batch", type=int, help="batch size (default: the small config's)")
    add("--rounds", type=int, default=5, help="rounds that are timed; 0 for none")
    add("--steps", type=int, default=5, help="steps per round")
    options = parser.parse_args()
    check_search()
    measure_flops(options)
    if options.rounds:
        measure_times(options)


if __name__ == "__main__":
    main()
