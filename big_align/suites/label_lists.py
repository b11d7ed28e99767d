"""Lists of images with the names of their classes, in the format of FGVC Aircraft."""

from collections.abc import Sequence

from big_align.core.errors import UserError
from big_align.data.labels.label_names import normalize_name
from big_align.data.sources.listed_source import ListedSource
from big_align.data.sources.table_source import join
from big_align.data.table_lines import BadLines, read_text_lines


def read_label_list(path: str, names: Sequence[str]) -> ListedSource:
    """Makes a source from a file whose lines are `1025794 707-320`: an image and its class.

    The image is `images/1025794.jpg` next to the file; a label is an index into the names.
    """
    places = {normalize_name(name): place for place, name in enumerate(names)}
    bad = BadLines(path)
    images, labels, lines = [], [], []
    for line, text in read_text_lines(bad):
        image, _, name = text.strip().partition(" ")
        if not image:
            continue
        label = places.get(normalize_name(name))
        if label is None:
            bad.refuse(line, f": {name!r} is no class of this data set, as in '1025794 {names[0]}'")
        images.append(join(path.rpartition("/")[0], f"images/{image}.jpg"))
        labels.append((label,))
        lines.append(line)
    if not images:
        raise UserError(f"{path} names no image")
    title = path.rpartition("/")[2]
    return ListedSource(title, images, labels, class_names=tuple(names), lines=lines)
