"""UniCL's Table 2 on shop photographs: cross-entropy, SupCon and UniCL from scratch on two cores.

Arguments: `unicl`; `cross_entropy`; `supcon`, the first stage, which a linear probe measures, and
`supcon_classifier`, the second, which trains a linear classifier on the image tower of
--config.init.image=WORKDIR_OF_THE_FIRST.
Table 3: `unicl_table` (an embedding for each class instead of a text encoder), and both readings of
"L_t2i" alone, `unicl_table_image_to_text` and `unicl_table_text_to_image`.
configs/unicl_cifar10.py asks the same of CIFAR-10.
"""

from ml_collections import ConfigDict

from big_align.config.defaults import complete_config
from big_align.configs import common
from big_align.configs.parts import two_cores

METHODS = (
    *("unicl", "unicl_table", "unicl_table_image_to_text", "unicl_table_text_to_image"),
    *("cross_entropy", "supcon", "supcon_classifier"),
)


def get_config(arg: str = "unicl"):
    """Returns the config of a method."""
    arg, _ = common.choose(arg, METHODS, "unicl")
    config = two_cores.get_base()
    config.total_steps = 500
    labels = two_cores.labels_of("grocery")
    config.data.update({field: labels[field] for field in ("source", "classes", "templates")})
    test = two_cores.tar("grocery/test-*.tar", caption="", label="cls")
    measured = dict(source=test, transform=two_cores.EVALUATE)
    set_method(config, arg, measured, f"{common.data_dir()}/grocery/classes.json", 81)
    return complete_config(config)


def set_method(
    config: ConfigDict, method: str, measured: dict, classes: str, num_classes: int
) -> None:
    """Sets a method's objective, text side and evaluator, in place.

    Args:
      config: its data are set.
      method: one of `METHODS`.
      measured: the source and the transform of the evaluator.
      classes: the class list.
      num_classes: how many classes it has.
    """
    templates = two_cores.TEMPLATES
    config.objective = dict(name="unicl", temperature=0.1)
    if method.startswith("unicl_table"):
        config.tokenizer = dict(name="class_names", classes=classes)
        width = config.model.embedding_dim
        config.model.text = dict(name="embedding_table", vocab_size=num_classes, width=width)
        config.model.text_projection = False
        config.data.templates = templates = ("{}",)
        config.objective.direction = method.removeprefix("unicl_table").lstrip("_") or "both"
    if method.startswith("unicl"):
        zero_shot = dict(name="zero_shot", names=classes, templates=templates)
        config.evaluators = dict(zero_shot=zero_shot | measured)
        return
    config.model.text = {}
    config.model.image_projection = False
    config.model.embedding_dim = None
    config.evaluators = dict(classification=dict(name="classification") | measured)
    config.objective = dict(name="cross_entropy")
    if method == "supcon":
        probe = dict(name="linear_probe", train_source=config.data.source.to_dict())
        config.evaluators = dict(linear_probe=probe | measured)
        config.objective = dict(name="supcon", temperature=0.1)
        config.data.views_per_image = 2
    if method == "supcon_classifier":
        config.model.locked = ("image",)
        config.total_steps = 300
        config.schedule.learning_rate = 1e-2
