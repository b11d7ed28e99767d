"""Finds which column of a table, or which feature of a record, holds what, by the usual names."""

import re
from collections.abc import Collection, Sequence

from big_align.core.errors import FieldError, UserError

FILES = (
    ("filepath", "file_path", "file_name", "filename", "image_path", "image_file", "image", "img",
     "img_path", "path", "file"),
    ("image_name",),
    ("url", "image_url"),
)  # fmt: skip
"""Columns that name the file of an image. The first group that is present counts."""
IMAGES = (
    ("jpg", "jpeg", "png", "webp"),
    ("image", "img", "image_bytes", "image/encoded", "encoded_image", "bytes"),
)
"""Columns that hold an encoded image. img2dataset's come first."""
CAPTIONS = (
    ("txt",),
    ("caption", "captions", "title", "text", "texts", "sentence", "sentences", "image/caption",
     "caption/text", "captions/text"),
    ("comment",),
)  # fmt: skip
LABELS = (("label", "labels", "class", "classes", "cls", "category", "image/class/label"),)

Groups = Sequence[Sequence[str]]


def choose(
    field: str, given: str | None, names: Collection[str], groups: Groups, where: str
) -> str | None:
    """Returns the column for a field of a source: the given one, or the first with a usual name.

    Args:
      field: the field of the source, such as `image`.
      given: what the field is set to; None finds a column, "" wants none.
      names: the columns that are there.
      groups: usual names, in lower case. The first group that is present counts.
      where: the table, for messages.
    """
    if given is not None:
        if given and given not in names:
            raise FieldError(
                f"{where} has no column {given!r}; it has {list_names(names)}", **{field: "COLUMN"}
            )
        return given or None
    for group in groups:
        found = [name for name in names if name.lower() in group]
        if len(found) > 1:
            raise FieldError(
                f"{where} has the columns {' and '.join(map(repr, found))}, and either may hold "
                f"the {field}; it has {list_names(names)}",
                **{field: found[0]},
            )
        if found:
            return found[0]
    return None


def choose_texts(
    caption: str | None, label: str | None, names: Collection[str], where: str
) -> tuple[str | None, str | None]:
    """Returns the columns of captions and labels; what is not set is found by its name.

    A label column is looked for only if there is no caption column: labels beside captions change
    what some objectives learn, so they are read only on request.
    """
    captions = choose("caption", caption, names, CAPTIONS, where)
    wanted = "" if label is None and (captions or caption == "") else label
    labels = choose("label", wanted, names, LABELS, where)
    found = captions or labels or caption is not None or label is not None
    if not found and len(names) > 1:  # a table of one column can only hold images
        raise FieldError(
            f"{where} has no column with a usual name of captions or labels; it has "
            f"{list_names(names)}. Name one, or none (caption=) to read images alone",
            caption="COLUMN",
        )
    return captions, labels


def choose_image(given: str | None, names: Collection[str], groups: Groups, where: str) -> str:
    """Returns the column of images; raises FieldError if none has a usual name."""
    found = choose("image", given, names, groups, where)
    if not found:
        addresses = [name for name in names if name.lower() in FILES[-1]]
        hint = f". Those in {addresses[0]!r} img2dataset downloads" if addresses else ""
        raise FieldError(
            f"{where} has no column with a usual name of images; it has {list_names(names)}{hint}",
            image="COLUMN",
        )
    return found


def is_address(image: str) -> bool:
    """Returns whether what a table calls an image is a URL, perhaps behind one of fsspec's caches.

    Nothing is fetched because a row of a table says so.
    """
    return bool(re.search(r"(^|::)https?://", image, re.IGNORECASE))


def check_address(image: str, caption: str | None, path: str, where: str) -> None:
    """Refuses a table of URLs: what a server no longer has would be missing in training."""
    if not is_address(image):
        return
    kind = path.rpartition(".")[2].lower()
    texts = f" --caption_col={caption}" if caption else ""
    raise UserError(
        f"{where}: the image is an address ({image[:60]}), not a file. img2dataset downloads it "
        f"first: img2dataset --url_list={path} --input_format={kind} --url_col=COLUMN{texts} "
        "--output_format=webdataset --output_folder=FOLDER; then read FOLDER/*.tar with the source "
        "tar"
    )


def list_names(names: Collection[str]) -> str:
    """Lists columns for a message, a few dozen at most."""
    listed = [repr(name) for name in names]
    return ", ".join(listed[:30]) + (f" and {len(listed) - 30} more" if len(listed) > 30 else "")


def describe(**columns: str | None) -> str:
    """Describes in a phrase which columns are read."""
    return ", ".join(f"{field}={name!r}" for field, name in columns.items() if name)
