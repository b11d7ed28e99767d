"""Makes shards of Flickr8k, as the configs expect them, from the archive of its authors.

    python -m big_align.tools.flickr8k --input=downloads/flickr8k --output=data/flickr8k

The input is a folder with the contents of Flickr8k_Dataset.zip and Flickr8k_text.zip: photographs
in Flicker8k_Dataset (or Images), Flickr8k.token.txt (or Kaggle's captions.txt), and the lists of
the splits, Flickr_8k.trainImages.txt, devImages and testImages. The output is train-*.tar,
dev-*.tar and test-*.tar, with `jpg`, `txt` (the first caption) and `json` (all captions,
`flickr_id`). With BIG_ALIGN_DATA=data, configs such as configs/align_flickr8k.py train on
data/flickr8k.
"""

import argparse
import sys

from big_align.tools import command


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = command.make_parser("flickr8k", __doc__)
    add = parser.add_argument
    add("--input", required=True, help="the folder with the unpacked archive")
    add("--output", required=True, help="the folder to write shards to")
    add("--side", type=int, default=128,
        help="resize photographs to this width and height in pixels, as in the measured results; "
        "0 keeps the files as they are (%(default)s)")  # fmt: skip
    add("--shard_size", type=int, default=1000, help="most examples per shard (%(default)s)")
    return command.run(convert, parser.parse_args(arguments))


def convert(options: argparse.Namespace) -> None:
    """Writes the shards, and prints a summary."""
    from big_align.prepare.archives.flickr8k import read_archive, write_shards

    command.check_least(options, side=0, shard_size=1)
    archive = read_archive(options.input)
    paths = write_shards(
        archive, options.output.rstrip("/"), options.side or None, options.shard_size
    )
    lines = [
        f"{split}: {len(names):,} photographs, {len(paths[split])} shards: {paths[split][0]} ..."
        for split, names in archive.splits.items()
    ]
    used = sum(map(len, archive.splits.values()))
    if unused := len(archive.captions) - used:
        lines.append(f"{unused:,} photographs are in no split, and left out")
    if archive.left_out:
        lines.append(f"{archive.left_out:,} captions are of a photograph that there is not")
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
