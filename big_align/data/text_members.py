"""Captions and labels in the files, or members of a shard, that stand beside an image."""

from big_align.data import examples


class TextMembers:
    """Reads captions and labels of the members of an example.

    Args:
      caption: the member that holds the text, or the field of a JSON member that holds a text
        or a list of texts: `txt`, `json.captions`. None or "" reads no captions.
      label: likewise the class number, or a JSON list of them. None or "" reads none.
      caption_lines: whether each line of a text is a caption of its own.

    Attributes:
      names: the members that are read.
    """

    def __init__(self, caption: str | None, label: str | None, caption_lines: bool = False):
        self._caption = examples.split_member(caption) if caption else None
        self._label = examples.split_member(label) if label else None
        self._caption_lines = caption_lines
        self.names = list(dict.fromkeys(x[0] for x in (self._caption, self._label) if x))

    def parse(self, texts: list[bytes]) -> tuple[list[str], tuple[int, ...]]:
        """Returns captions and labels; raises BrokenExample.

        Args:
          texts: the content of each member of `names`.
        """
        data = dict(zip(self.names, texts, strict=True))
        captions, labels = [], ()
        if self._caption:
            value = examples.read_field(data[self._caption[0]], *self._caption)
            captions = examples.clean_captions(value, self._caption_lines)
        if self._label:
            labels = examples.clean_labels(examples.read_field(data[self._label[0]], *self._label))
        return captions, labels
