"""Data sets of Hugging Face's hub, by name, from their Parquet files."""

from big_align.data.remote.hub_splits import list_split
from big_align.data.sources.parquet_source import ParquetSource


class HubSource(ParquetSource):
    """Examples of a data set on Hugging Face's hub, read from there a row group at a time.

    They are in the Parquet files of the data set, or in those into which the hub has converted it.
    The commit is found when the source is opened, and all its reads are of that commit.

    Args:
      path: the data set, as OWNER/NAME.
      split: the name of the split.
      subset: the name of a subset, which the hub also calls a config; None for the default one, or
        for the only one.
      revision: a branch, a tag or a commit; None for the newest, which alone the hub converts.

    Raises:
      UserError: there is no such data set, subset or split, whose names are told then; or it has no
        Parquet files; or what `ParquetSource` raises.
    """

    def __init__(
        self,
        path: str,
        split: str = "train",
        subset: str | None = None,
        revision: str | None = None,
        image: str | None = None,
        caption: str | None = None,
        label: str | None = None,
        caption_lines: bool = False,
        cache_megabytes: int = 256,
        index_dir: str | None = None,
        key: str | None = None,
        language: str | None = None,
    ):
        super().__init__(
            list_split(path, split, subset, revision),
            image=image,
            caption=caption,
            label=label,
            caption_lines=caption_lines,
            cache_megabytes=cache_megabytes,
            index_dir=index_dir,
            key=key,
            language=language,
        )
