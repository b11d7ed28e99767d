"""Embeddings of the images of many files, made once and kept on disk, as if they were one array."""

import functools
import hashlib
import json
import pathlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int
from tqdm import tqdm

from big_align.core.errors import UserError, pass_unreachable, tell_in_a_line
from big_align.core.progress import make_bar
from big_align.data.derived.source_pieces import Pieces, fingerprint_images
from big_align.data.examples import Source
from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.precomputed.shard_files import INDEX
from big_align.data.shard_offsets import ShardOffsets
from big_align.prepare.inputs import SKIPPING, FileRows, Inputs
from big_align.runs.embedding.embed_source import SourceEncoder, embed_source, make_encoder
from big_align.use.clusters.kmeans_init import scale_rows
from big_align.weights.formats.architecture import find_edges
from big_align.weights.formats.pretrained import Pretrained

DTYPE = "float16"
OPEN_FOLDERS = 16


class UnitEncoder(SourceEncoder):
    """An encoder whose rows have unit length, so that half precision holds them."""

    def embed(
        self, batch: Mapping[str, np.ndarray], count: int
    ) -> tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, "n"]]:
        """Returns rows of unit length, and which images are real."""
        values, readable = super().embed(batch, count)
        return scale_rows(values), readable


def make_unit_encoder(
    model: Pretrained, what: str | None, transform: str | None, batch_size: int | None = None
) -> UnitEncoder:
    """Makes an encoder of images by an image tower, or a dual encoder's.

    By default it takes embeddings if the model has a projection, else features; and whole images,
    resized to the model's own size: a crop would hide what was cut off.
    """
    what = what or ("embedding" if model.kind == "dual" else "features")
    if transform is None and model.image_size:
        edges = dict.fromkeys(find_edges(model.image_size))
        transform = f"resize({', '.join(map(str, edges))})"
    return UnitEncoder(*make_encoder(model, what, transform, batch_size))


class EmbeddedFiles:
    """The images of some files in their order, embedded.

    `folder` holds a folder of `data/precomputed` for each file, named after whatever its rows
    depend on. So a file that has been embedded is not read again, unless it has changed. One that
    cannot be opened has no rows, and is `unopened` with the reason.
    """

    def __init__(
        self,
        inputs: Inputs,
        encoder: SourceEncoder,
        folder: pathlib.Path,
        max_broken_fraction: float = 1.0,
    ):
        self.inputs, self.dim = inputs, encoder.dim
        self._encoder, self._folder, self._fraction = encoder, folder, max_broken_fraction
        self._open = functools.lru_cache(maxsize=OPEN_FOLDERS)(EmbeddingFolder)
        self._find_rows = functools.lru_cache(maxsize=2)(lambda file: FileRows(inputs.open(file)))
        self.unopened: dict[str, str] = {}
        self._folders: list[pathlib.Path | None] = [None] * len(inputs.paths)
        self._arrange(np.zeros(len(inputs.paths), np.int64))

    def _arrange(self, files: Int[np.ndarray, " files"]) -> None:
        self.files, self._offsets = files, ShardOffsets(files)
        self.count = self._offsets.count

    def embed(self, say: str = "embed") -> int:
        """Embeds what is not on disk; returns how many images were embedded."""
        made, sizes = 0, np.zeros(len(self.inputs.paths), np.int64)
        with make_bar(desc=say, unit="image", dynamic_ncols=True) as bar:
            for file in range(len(sizes)):
                try:
                    folder = self._find_folder(file)
                    source = None if _is_whole(folder) else self.inputs.open(file)
                except (ValueError, OSError) as error:
                    pass_unreachable(error)
                    self.unopened[self.inputs.paths[file]] = tell_in_a_line(error)
                    continue
                if source is not None:
                    made += self._embed_file(file, source, folder, bar)
                self._folders[file] = folder
                sizes[file] = self._open(folder).count
            bar.total = bar.n
        self._arrange(sizes)
        if not self.count:
            paths = self.inputs.paths
            name, why = next(iter(self.unopened.items()), (paths[0], "it is empty"))
            told = paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
            raise UserError(f"there are no images in {told}; of {name}: {why}")
        return made

    def _embed_file(self, file: int, source: Source, folder: pathlib.Path, bar: tqdm) -> int:
        # the total number of images is known only when the last file is open
        count, files = int(source.shard_sizes.sum()), len(self.inputs.paths)
        bar.total = max((bar.n + count) * files // (file + 1), bar.n + count)
        about = {"input": self.inputs.paths[file]}
        return embed_source(
            self._encoder, Pieces(source), folder, DTYPE, about, self._fraction, bar
        )

    def _find_folder(self, file: int) -> pathlib.Path:
        encoder, inputs = self._encoder, self.inputs
        made = [encoder.weights, encoder.what, encoder.transform, DTYPE, inputs.kind]
        path, stamp = inputs.paths[file], inputs.stamps[file]
        # a folder has no time of its own, so some of its images identify it
        which = [path, stamp] if stamp else fingerprint_images(inputs.open(file))
        text = json.dumps([made, which, inputs.arguments])
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return self._folder / f"{inputs.stems[file][-60:]}-{digest}"

    def read(self, first: int, end: int) -> Float[np.ndarray, "n d"]:
        """Reads rows [first, end) as they are stored; those of broken images are zero."""
        pieces = [np.zeros((0, self.dim), DTYPE)]
        while first < end:
            file, row = self._offsets.locate_one(first)
            last = min(row + end - first, int(self.files[file]))
            pieces.append(self._open(self._folders[file]).read(row, last))
            first += last - row
        return np.concatenate(pieces)

    def take(self, numbers: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n d"]:
        """Reads chosen rows as they are stored, file by file."""
        found = np.zeros((len(numbers), self.dim), DTYPE)
        files, rows = self._offsets.locate(numbers)
        for file in np.unique(files).tolist():
            chosen = files == file
            found[chosen] = self._open(self._folders[file]).take(rows[chosen])
        return found

    def locate(self, number: int) -> tuple[int, int]:
        """Returns the file of an image, and its number among those of the file."""
        return self._offsets.locate_one(number)

    def count_broken(self) -> int:
        """Returns how many images could not be read."""
        return sum(self._open(folder).absent for folder in self._folders if folder)

    def key(self, number: int) -> str:
        """Returns the key of an image that says which row of which file it is."""
        file, at = self.locate(number)
        skips = self.inputs.kind in SKIPPING
        return self.inputs.key(file, int(self._find_rows(file).numbers[at]) if skips else at)

    def own_key(self, number: int) -> str:
        """Returns the key that an image has in its file."""
        file, row = self.locate(number)
        folder = self._open(self._folders[file])
        shard, index = folder.locate(row)
        return folder.keys(shard)[index]


def _is_whole(folder: pathlib.Path) -> bool:
    """Returns whether all embeddings of a file are there."""
    if not (folder / INDEX).is_file():
        return False
    try:
        return EmbeddingFolder(folder).count >= 0
    except UserError:
        return False  # what is missing is made; damage is reported when the folder is opened
