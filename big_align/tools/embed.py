"""Embeds images or texts, into one array and one list of keys per shard, or into a single file.

For example:
  python -m big_align.tools.embed --model=workdirs/flickr8k --source='data/pairs-*.tar' \\
      --output=embeddings
  python -m big_align.tools.embed --model=clip-vit-base-patch32 --source_name=tfds \\
      --source=imagenet2012 --source_argument=split=train --what=features --output=features
  python -m big_align.tools.embed --model=workdirs/flickr8k --what=text --source=queries.txt \\
      --output=queries.parquet
  python -m big_align.tools.embed --model=workdirs/flickr8k --what=text --source=items.csv \\
      --column=title --key_column=id --output=items.npy

The model is a workdir (its newest checkpoint), WORKDIR/checkpoints/STEP or .../best, a folder saved
by transformers, open_clip, timm or big_align, or a file of weights. Running the same command again
continues where it stopped, and keeps finished shards.
Start the command on as many hosts as there are, at any time and without --distributed: they share
the shards by files in the output folder, which all must see. What a lost host had, another takes
over after half a minute. Each ends when nothing is left to take.
An image that cannot be decoded is reported; its row is all zeros, and its key is empty.
To train on what is written, open the source as the training will, asking for the same members, so
that positions agree.

Texts are the captions of a source, the lines of .txt files, or a --column of CSV, TSV or Parquet
files, which need no images. Captions of the same example share its key; the key of a line or row is
its number, unless --key_column is given. The row of an empty text is all zeros, and its key is
empty.

--output=FILE.npy writes one array, and the keys to FILE.keys beside it, one per line.
Keys are SHARD/KEY if several shards have the same ones, as in 00017/000000042.
--output=FILE.parquet writes the columns key and embedding, with nulls for what could not be
embedded.
"""

import argparse
import os
import pathlib
import shutil
import sys

from big_align.core.errors import UserError, WrongValue
from big_align.core.whole_files import check_local
from big_align.tools import command


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    from big_align.config.components.source_flags import add_source_flags

    parser = command.make_parser("embed", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="a workdir, or a folder or file of weights")
    add_source_flags(parser)
    add("--transform", help="image operations to apply (default: the model's own)")
    add("--what", choices=("embedding", "features", "text"), default="embedding",
        help="embedding: unit-length embeddings of images; features: what the image tower pools, "
        "before any projection; text: embeddings of texts (%(default)s)")  # fmt: skip
    add("--column", help="the column of a table with the texts, for --what=text")
    add("--key_column", help="with --column, the column with their keys (default: row numbers)")
    add("--dtype", choices=("float16", "float32"),
        help="type of the stored numbers (float16, but float32 for Parquet)")  # fmt: skip
    add("--batch_size", type=int,
        help="images per batch on each host (256; 64 on CPUs), or texts (64 per "
        "device)")  # fmt: skip
    add("--max_broken_fraction", type=float, default=0.01,
        help="stop if more than this fraction of the images is broken (%(default)s)")  # fmt: skip
    add("--output", required=True, type=command.folder_path,
        help="the folder, local or an address such as s3://BUCKET/FOLDER, or the local .npy or "
        ".parquet file to write")  # fmt: skip
    add("--distributed", action="store_true", help="run as one of several processes, see launch/")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return command.run(embed, parse_arguments(arguments))


def embed(options: argparse.Namespace) -> None:
    """Embeds, and prints what was done."""
    from big_align.data.precomputed import shard_files, single_files
    from big_align.data.precomputed.embedding_files import EmbeddingFolder
    from big_align.data.precomputed.shard_files import EMBEDDINGS
    from big_align.parallel.distributed import agreement

    _check(options)
    command.begin_processes(options.distributed)
    output, embed_into = options.output, _embed_texts if options.what == "text" else _embed_images
    ending = pathlib.PurePath(output).suffix
    dtype = options.dtype or ("float32" if ending == ".parquet" else "float16")
    if ending not in single_files.ENDINGS:
        embed_into(options, output, dtype)
        # A process that is done waits here: JAX ends all some minutes after one has exited.
        agreement.gather("embedded", None)
        return
    folder = output.with_name(output.name + ".shards")  # from which the same command continues
    embed_into(options, folder, dtype)
    if output.exists() or shard_files.list_missing(folder, EMBEDDINGS):
        return  # whoever comes last writes the file
    rows = EmbeddingFolder(folder)
    write = single_files.write_npy if ending == ".npy" else single_files.write_parquet
    keys, told = rows.keys, ""
    if not options.key_column:  # whose keys mean what the user wants
        keys, told = single_files.name_rows(rows, options.what != "text")
    write(rows, output, keys)
    shutil.rmtree(folder)
    print(f"{output}: {rows.dtype} [{rows.count} {rows.dim}], with the key of each row")
    if told:
        print(f"  {told}")


def _check(options: argparse.Namespace) -> None:
    """Raises UserError if flags are wrong, do not go together, or the output exists already."""
    from big_align.data.loading.broken import check_fraction
    from big_align.data.precomputed.single_files import ENDINGS, OTHER_ENDINGS

    check_fraction(options.max_broken_fraction)
    if options.what != "text" and (options.column or options.key_column):
        raise WrongValue("--column and --key_column are for texts: give --what=text as well")
    if options.what == "text" and options.transform:
        raise WrongValue("--transform is for images, and --what=text embeds texts")
    if options.key_column and not options.column:
        raise WrongValue("--key_column is beside --column, which is not given")
    ending = pathlib.PurePath(options.output).suffix
    if ending.lower() in OTHER_ENDINGS:
        raise UserError(
            f"--output={options.output}: a file that is written is .npy or .parquet; any other "
            "name is a folder of .npy files, so give one without an ending"
        )
    if ending in ENDINGS:
        check_local(options.output)
        if options.output.exists():
            raise UserError(f"--output={options.output} is there: remove it, or name another")
        if options.distributed:
            raise WrongValue("--distributed needs a folder: several processes write no single file")


def _embed_images(options: argparse.Namespace, folder: str | os.PathLike, dtype: str) -> None:
    from big_align.config.components.source_flags import open_source
    from big_align.runs import workdir
    from big_align.runs.embedding import embed_source
    from big_align.weights.hub.download import fix_revision

    source, node = open_source(options.source, options.source_name, options.source_argument)
    named = fix_revision(options.model)
    pretrained = workdir.read_pretrained(named)
    encoder = embed_source.make_encoder(
        pretrained, options.what, options.transform, options.batch_size
    )
    print(f"{named}: {pretrained.description}, images by {encoder.transform}")
    made_by = {"model": named, "source": node}
    count = embed_source.embed_source(
        encoder, source, folder, dtype, made_by, options.max_broken_fraction, wait=False
    )
    total, shards = int(source.shard_sizes.sum()), len(source.shard_sizes)
    print(
        f"{folder}: {count} of {total} images embedded now, {encoder.what} of "
        f"{encoder.dim} numbers, {shards} shards"
    )


def _embed_texts(options: argparse.Namespace, folder: str | os.PathLike, dtype: str) -> None:
    from big_align.config.components.source_flags import TEXT, open_source, recognize_source
    from big_align.use.inference import embed_texts, loaded_model, text_shards
    from big_align.weights.hub.download import fix_revision

    path, name = options.source, options.source_name
    if options.column:
        texts = text_shards.list_column(path, options.column, options.key_column)
        node = {"path": path, "column": options.column, "key_column": options.key_column}
    elif (name or recognize_source(path)) == TEXT:
        texts, node = text_shards.list_lines(path), {"name": TEXT, "path": path}
    else:
        source, node = open_source(path, name, options.source_argument, captions=True)
        texts = text_shards.list_captions(source)
    named = fix_revision(options.model)
    model = loaded_model.load(named, batch_size=options.batch_size, progress=False)
    print(f"{named}: {model.description}")
    made_by = {"model": named, "source": node}
    count = embed_texts.embed_texts(model, texts, folder, dtype, made_by, wait=False)
    total, shards = int(texts.shard_sizes.sum()), len(texts.shard_sizes)
    print(f"{folder}: {count} of {total} texts embedded now, {shards} shards")


if __name__ == "__main__":
    sys.exit(main())
