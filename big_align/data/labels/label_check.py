"""Checks that the labels of a source are in a class list."""

from big_align.core.errors import UserError
from big_align.data import boundary, examples
from big_align.data.shard_offsets import ShardOffsets

CHECKED_FIRST = 65_536  # examples whose labels are looked at before training starts


def check_label(name: str, label: int, num_classes: int) -> None:
    """Raises a UserError that names the example if its label is -1 or not in a class list."""
    if label == examples.NO_LABEL:
        raise UserError(
            f"{name} has no label, and a class list of {num_classes} is set: let the source read "
            "labels (its argument `label`), or leave `classes` out"
        )
    if not 0 <= label < num_classes:
        raise UserError(
            f"{name} has the label {label}, which is not in the class list: its {num_classes} "
            f"classes are the labels 0 to {num_classes - 1}. Mend the label or set `classes` to a "
            "list that has it"
        )


def check_labels(source: examples.Source, num_classes: int) -> None:
    """Checks the labels of up to 65,536 examples, spread evenly, without reading images.

    Broken examples are skipped; the first wrong label is a UserError.
    """
    places = ShardOffsets(source.shard_sizes).spread(CHECKED_FIRST)
    for place, texts in boundary.read_many_texts(source, places):
        try:
            if isinstance(texts, examples.BrokenExample):
                raise texts
            label = examples.single_label(texts[1])
        except examples.WrongLabel as error:
            raise UserError(f"{source.name(*place)}: {error}") from error
        except examples.BrokenExample:
            continue
        check_label(source.name(*place), label, num_classes)
