"""MLCD on LAION-400M and COYO-700M (An et al. 2024, §4.1, appendix A.1): both stages.

Arguments, separated by commas:
  image=b32 | b16 | l14
  data=laion400m | coyo700m
  stage=image          on clusters of CLIP's embeddings, --config.data.precomputed.clusters=FOLDER
  stage=text           a text tower for the image encoder, --config.init.all=WORKDIR of the former
  figure=3 | 5         checkpoints for the curves of Figure 3 are kept; ImageNet is measured for
                       those of Figure 5a
  epochs, and those of `ROWS`
Tables of the paper, and the arguments of their rows:
  1 to 4   image=l14, then stage=text,image=l14; UNICOM in Table 1: image=l14,loss=unicom
  5a       epochs=5,clusters=100000 | 200000 | 500000 | 1000000 | 2000000 | 5000000
  5b       epochs=5,ratio=0.01 | 0.05 | 0.1 | 0.2 | 0.5 | 1.0
  5c       epochs=5,labels=1 | 2 | 4 | 8 | 16 | 32
  5d       epochs=5,min_similarity=0.95 | 0.93 | 0.91 | 0.89 | 0.87 | 0.85
  6        loss=mlc | mlcd, then stage=text
  7        loss=unicom | mlcd,data=laion400m | coyo700m; its caption says ViT-B/32
Figure 3   figure=3 with loss=mlc | mlcd; 5a: figure=5 with image=b32 | b16 | l14
The clusters come from
  python -m big_align.tools.embed --model=FOLDER_OF_CLIP_VIT_L14 --output=embeddings \
      --source='data/laion400m/*.tar'
  python -m big_align.tools.cluster --embeddings=embeddings --k=1000000 --output=clusters
which --candidates and --sample make cheaper (docs/data.md), and
with --labels_per_image=32 for 5c's, and --labels_per_image=32 --min_similarity=0.91 for 5d's.
"""

from big_align.config.defaults import complete_config
from big_align.configs import common
from big_align.configs.parts import clip_text
from big_align.weights.formats.preprocessing import CLIP_MEAN, CLIP_STD

LEGAL = {
    "image": ("b32", "b16", "l14"),
    "data": ("laion400m", "coyo700m"),
    "stage": ("image", "text"),
    "epochs": ("5", "32"),
    "figure": ("3", "5"),
}
ROWS = {
    "loss": ("mlcd", "mlc", "unicom"),
    "clusters": (),
    "ratio": (),
    "labels": (),
    "min_similarity": (),
    "negatives": ("sampled", "drawn"),
}
"""Arguments that all configs of MLCD take, for `set_row`; an empty one is any number."""
EVALUATE = "resize_small(224)|central_crop(224)"
"""§4.2, A.1: "the same evaluation setting as CLIP", whose released code has it."""
CURVE = 20_000
"""Steps from one point of a curve to the next; a multiple of `checkpoint.every`."""
EXAMPLES = {"laion400m": 389_737_314, "coyo700m": 686_591_232}  # Table 11: train size


def get_config(arg: str = ""):
    """Returns the config of a stage."""
    given = common.parse_argument(arg, LEGAL | ROWS)
    image, data = given.get("image", "b32"), given.get("data", "laion400m")
    large = image == "l14"
    config = clip_text.get_base()
    # Table 10: 32,800, which divides over the paper's 80 GPUs, but not over 64 or 128 devices.
    config.batch_size = 32_768
    # Table 10: 32 epochs; Table 5: 5.
    config.total_steps = round(int(given.get("epochs", 32)) * EXAMPLES[data] / config.batch_size)
    config.data.source = dict(name="tar", path=f"data/{data}/*.tar", caption="txt")
    # The paper gives neither image crops nor Adam's decay rates: these are common for CLIP.
    config.data.transform = "random_resized_crop(224, 0.9, 1.0)"
    config.model.image = dict(
        name="vit",
        variant=f"{image[0]}/{image[1:]}",
        input_norm=True,  # this and the next three: "the same model configurations as CLIP" (§4.1)
        patch_bias=False,
        layer_norm_eps=1e-5,
        activation="quick_gelu",
        dtype="bfloat16",
        remat="auto",
    )
    config.model.text.variant = "l" if large else "b"  # Table 9: width 768 and 512
    config.model.embedding_dim = 768 if large else 512  # Table 9
    config.model.image_mean, config.model.image_std = CLIP_MEAN, CLIP_STD
    config.evaluators.imagenet.transform = EVALUATE
    config.optimizer = dict(name="adamw", weight_decay=0.2, b2=0.98)  # Table 10: 0.2
    config.schedule = dict(
        decay="cosine",
        learning_rate=4e-4 if large else 5e-4,  # Table 9; §4.1 says 1e-3
        warmup_steps=2000,  # Table 10
    )
    if given.get("stage", "image") == "text":
        for name in given.keys() & {*ROWS, "figure"}:
            raise ValueError(f"{name}={given[name]} is of stage=image, whose run init.all names")
        # A.1: the hyper-parameters of the first stage; the vision model is frozen.
        config.objective = dict(name="lit", min_temperature=0.01)  # Table 10: at most 100, inverse
        config.optimizer.frozen = ("model/project_image",)
        return complete_config(config)
    config.data.source.caption = ""
    config.data.captions_per_image = 0
    config.tokenizer = dict(name="none")
    config.model.text = {}
    # §4.1: a million centers, 8 of which are an image's own, and a tenth of all sampled as
    # negatives. A.1: margin 0.3, as in ArcFace, whose scale of 64 the paper does not mention.
    config.objective = dict(
        name="mlcd",
        num_clusters=1_000_000,
        labels_per_image=8,
        sampling_ratio=0.1,
        margin=0.3,
        scale=64.0,
    )
    set_row(config.objective, given)
    probe = clip_text.imagenet_linear_probe() | dict(transform=EVALUATE)
    config.evaluators = dict(imagenet=probe)
    config.evaluate_every = CURVE if given.get("figure") == "5" else config.total_steps
    if given.get("figure") == "3":
        config.checkpoint.keep_every = CURVE
    return complete_config(config)


def set_row(objective, given: dict[str, str]) -> None:
    """Changes an objective as the arguments of a row of the paper's Tables 5, 6, 7 or 12 say.

    Args:
      objective: the node, changed in place.
      given: values of `ROWS` and of others, by name.
    """
    if "min_similarity" in given:
        objective.labels_per_image = 32  # at most; the paper gives no bound
    for name, field, kind in (
        ("loss", "loss", str),
        ("clusters", "num_clusters", int),
        ("ratio", "sampling_ratio", float),
        ("labels", "labels_per_image", int),
        ("min_similarity", "min_similarity", float),
        ("negatives", "negatives", str),
    ):
        if name in given:
            try:
                objective[field] = kind(given[name])
            except ValueError as error:
                raise ValueError(f"{name}={given[name]} is no number") from error
