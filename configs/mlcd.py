"""MLCD on LAION-400M and COYO-700M (An et al. 2024, §4.1, appendix A.1): both stages.

Arguments, separated by commas:
  image=b32 | b16 | l14
  data=laion400m | coyo700m
  stage=image          on clusters of CLIP's embeddings, --config.data.precomputed.clusters=FOLDER
  stage=text           a text tower for the image encoder, --config.init.all=WORKDIR of the former
The clusters come from
  python -m big_align.tools.embed --model=FOLDER_OF_CLIP_VIT_L14 --output=embeddings \
      --source='data/laion400m/*.tar'
  python -m big_align.tools.cluster --embeddings=embeddings --k=1000000 --output=clusters
"""

from big_align.configs import clip_text, common
from big_align.runs.defaults import complete_config

LEGAL = {
    "image": ("b32", "b16", "l14"),
    "data": ("laion400m", "coyo700m"),
    "stage": ("image", "text"),
}
EXAMPLES = {"laion400m": 389_737_314, "coyo700m": 686_591_232}  # Table 11: train size


def get_config(arg: str = ""):
    """Returns the config of a stage."""
    given = common.parse_argument(arg, LEGAL)
    image, data = given.get("image", "b32"), given.get("data", "laion400m")
    large = image == "l14"
    config = clip_text.get_base()
    # Table 10: 32,800, which divides over 32 devices and not over 64 or more.
    config.batch_size = 32_768
    config.total_steps = round(32 * EXAMPLES[data] / config.batch_size)  # Table 10: 32 epochs
    config.data.source = dict(name="tar", path=f"data/{data}/*.tar", caption="txt")
    # The paper says neither how images are cropped nor Adam's rates: these are common for CLIP.
    config.data.transform = "random_resized_crop(224, 0.9, 1.0)"
    config.model.image = dict(
        name="vit",
        variant=f"{image[0]}/{image[1:]}",
        input_norm=True,  # this and the next two: "the same model configurations as CLIP" (§4.1)
        patch_bias=False,
        layer_norm_eps=1e-5,
        dtype="bfloat16",
        remat=True,
    )
    config.model.text.variant = "l" if large else "b"  # Table 9: width 768 and 512
    config.model.embedding_dim = 768 if large else 512  # Table 9
    config.model.projection_bias = False
    config.optimizer = dict(name="adamw", weight_decay=0.2, b2=0.98)  # Table 10: 0.2
    config.schedule = dict(
        decay="cosine",
        learning_rate=4e-4 if large else 5e-4,  # Table 9
        warmup_steps=2000,  # Table 10
    )
    if given.get("stage", "image") == "text":
        # A.1: the hyper-parameters of the first stage; the vision model is frozen.
        config.objective = dict(name="lit", min_temperature=0.01)  # Table 10: at most 100, inverse
        config.optimizer.frozen = ("model/image", "model/project_image")
        return complete_config(config)
    config.data.source.caption = ""
    config.data.captions_per_image = 0
    config.tokenizer = dict(name="none")
    config.model.text = {}
    # §4.1: a million centers, 8 of them an image's own, a tenth of the others as negatives. A.1:
    # margin 0.3, as in ArcFace, whose scale of 64 the paper leaves unsaid.
    config.objective = dict(
        name="mlcd",
        num_clusters=1_000_000,
        labels_per_image=8,
        sampling_ratio=0.1,
        margin=0.3,
        scale=64.0,
    )
    config.evaluators = dict(imagenet=clip_text.imagenet_linear_probe())
    config.evaluate_every = config.total_steps
    return complete_config(config)
