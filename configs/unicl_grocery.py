"""UniCL's Table 2 on shop photographs: cross-entropy, SupCon and UniCL from scratch on two cores.

Arguments: `unicl`; `cross_entropy`; `supcon`, the first stage, and `supcon_classifier`, the second,
which tunes a linear classifier on the image tower of --config.init.image=WORKDIR_OF_THE_FIRST.
Table 3: `unicl_table` (an embedding for each class instead of a text encoder) and
`unicl_table_one_direction`.
"""

from big_align.configs import common, two_cores
from big_align.runs.defaults import complete_config

METHODS = (
    *("unicl", "unicl_table", "unicl_table_one_direction"),
    *("cross_entropy", "supcon", "supcon_classifier"),
)


def get_config(arg: str = "unicl"):
    """Returns the config of a method."""
    if arg not in METHODS:
        raise ValueError(f"configs/unicl_grocery.py takes {', '.join(METHODS)}, not {arg!r}")
    config = two_cores.get_base()
    config.total_steps = 500
    labels = two_cores.labels_of("grocery")
    config.data.update({field: labels[field] for field in ("source", "classes", "templates")})
    config.evaluators = dict(zero_shot=two_cores.zero_shot("grocery", "test"))
    config.objective = dict(name="unicl", temperature=0.1)
    if arg.startswith("unicl_table"):
        classes = f"{common.data_dir()}/grocery/classes.json"
        config.tokenizer = dict(name="class_names", classes=classes)
        config.model.text = dict(name="embedding_table", vocab_size=81, width=128)
        config.data.templates = config.evaluators.zero_shot.templates = ("{}",)
    if arg == "unicl_table_one_direction":
        config.objective.direction = "image_to_text"
    if arg in ("cross_entropy", "supcon", "supcon_classifier"):
        config.model.text = {}
        config.model.image_projection = False
        config.model.embedding_dim = None
        classes = two_cores.classification("grocery", "test")
        config.evaluators = {} if arg == "supcon" else dict(classification=classes)
    if arg == "cross_entropy":
        config.objective = dict(name="cross_entropy")
    if arg == "supcon":
        config.objective = dict(name="supcon", temperature=0.1)
        config.data.views_per_image = 2
    if arg == "supcon_classifier":
        config.objective = dict(name="cross_entropy", train_image_tower=False)
        config.optimizer.frozen = ("model/image",)
        config.total_steps = 300
        config.schedule.learning_rate = 1e-2
    return complete_config(config)
