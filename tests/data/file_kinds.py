"""Small files of tokenizers and tables of metadata, and what can be wrong with them."""

import gzip
import json
from collections.abc import Callable, Mapping
from typing import Any

from example_kinds import DEEP, SIZE, VICTIM, Path, Random, Spoil, vary

from big_align.config.components.signatures import make_named
from big_align.config.components.tables import SOURCES
from big_align.core.errors import UserError
from big_align.data.text.byte_pairs import byte_letters
from big_align.data.text.roberta_tokenizer import RobertaTokenizer
from big_align.data.text.tokenizers import SPECIAL_TOKENS, list_wordpieces
from big_align.use.search.metadata import MetadataTable, read_source
from big_align.use.search.stores.store import IndexEntry

ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", *byte_letters().values())


def write_tokenizer(pieces: tuple[str, ...], change: Callable[[dict], Any] = id, other="1"):
    """Writes a `tokenizer.json` of transformers; `change` changes its ids, by piece."""

    def write(folder: Path, rng: Any = None, change=change, other=other) -> None:
        ids: dict[str, Any] = {piece: number for number, piece in enumerate(pieces)}
        change(ids)
        added = [{"content": piece, "id": ids.get(piece)} for piece in pieces[:2]]
        model = {"type": "any", "vocab": ids, "merges": ["a b", ["Ġ", "t"]]}
        model["vocab"] |= {"ab": len(ids), "Ġt": len(ids) + 1}
        text = json.dumps({"added_tokens": added, "other": 7, "model": model})
        (folder / "tokenizer.json").write_text(text.replace('"other": 7', f'"other": {other}'))

    return write


def _as_user_error(read: Callable[[Path], Any]) -> Callable[[Path], tuple[Any, int]]:
    """A component may raise ValueError: whoever makes it names the field of the config."""

    def call(folder: Path) -> tuple[Any, int]:
        try:
            return read(folder), 0
        except ValueError as error:
            raise UserError(str(error)) from error

    return call


@_as_user_error
def read_wordpieces(folder: Path) -> list[str]:
    return list_wordpieces(f"{folder}/tokenizer.json")


@_as_user_error
def read_roberta(folder: Path) -> Any:
    tokenizer = RobertaTokenizer(*[f"{folder}/tokenizer.json"] * 2, 9)
    return [tokenizer("that ab")[0].tolist(), tokenizer.pieces(range(tokenizer.vocab_size))]


def write_lines_of_pieces(folder: Path, rng: Any = None, more: str = "") -> None:
    (folder / "vocab.txt").write_text(
        "".join(f"{x}\n" for x in (*SPECIAL_TOKENS, "a", "##b")) + more
    )


@_as_user_error
def read_lines_of_pieces(folder: Path) -> list[str]:
    return list_wordpieces(f"{folder}/vocab.txt")


def write_merges(folder: Path, rng: Any = None, data: bytes = b"#version\na b\n") -> None:
    write_tokenizer(ROBERTA)(folder)
    (folder / "merges.txt.gz").write_bytes(gzip.compress(data, 1))


@_as_user_error
def read_merges(folder: Path) -> Any:
    return RobertaTokenizer(f"{folder}/tokenizer.json", f"{folder}/merges.txt.gz", 9)("ab")[
        0
    ].tolist()


def set_id(id: Any) -> Callable[[dict], Any]:
    return lambda ids: ids.update({list(ids)[VICTIM]: id})


def shift(ids: dict) -> None:
    """Counts from 1."""
    ids.update({piece: number + 1 for piece, number in ids.items()})


IDS: list[Mapping[str, Any]] = [
    *({"change": set_id(id)} for id in (1000, -1, 0, "4", 4.0, True, None, 2**70, [4], {})),
    {"change": shift}, {"change": lambda ids: ids.pop(list(ids)[0])},
    {"change": lambda ids: ids.update({"\ud800": len(ids)})},
    {"other": DEEP}, {"other": '7, "other": 8'}, {"other": "[" * 100_000}, {"other": "9" * 5000},
]  # fmt: skip
WORDPIECE_FAULTS = vary(write_tokenizer(SPECIAL_TOKENS), IDS)
ROBERTA_FAULTS = vary(write_tokenizer(ROBERTA), IDS)
LINE_FAULTS = vary(write_lines_of_pieces, [{"more": "a\n"}, {"more": "\n\n"}])
MERGE_FAULTS = vary(write_merges, [{"data": bytes(2**26)}, {"data": b"a b\n" * 2**24}])


# Tables of metadata.


def entries() -> list[IndexEntry]:
    names = [f"{number}.png" for number in range(SIZE)]
    return [IndexEntry(name, name, "x", n, "", [], None) for n, name in enumerate(names)]


def write_facts(ending: str, encoding: str = "utf-8") -> Callable[..., None]:
    """Writes a table whose cells are JSON."""

    def write(folder: Path, rng: Any = None, name: str = '"more"', **changes: str) -> None:
        told = [{"file_name": f"{n}.png", "year": 2000 + n, "at": f"2020-01-0{n + 1}"}
                for n in range(SIZE)]  # fmt: skip
        rows = [{key: json.dumps(value) for key, value in row.items()} for row in told]
        rows[VICTIM] |= changes
        if ending == "csv":
            text = f"file_name,year,at,{json.loads(name)}\n"
            text += "".join(",".join(row.values()).replace('"', "") + ",7\n" for row in rows)
        else:
            texts = [", ".join(f'"{k}": {v}' for k, v in row.items()) for row in rows]
            lines = [f"{{{text}, {name}: 7}}" for text in texts]
            text = "\n".join(lines) if ending == "jsonl" else f"[{', '.join(lines)}]"
        (folder / f"facts.{ending}").write_bytes(text.encode(encoding, "surrogatepass"))

    return write


def write_parquet_facts(folder: Path, rng: Any = None, **more: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    told = {"file_name": [entry.name for entry in entries()], "year": range(SIZE)} | more
    pq.write_table(pa.table(told), folder / "facts.parquet", write_page_checksum=True)


def read_facts(ending: str) -> Callable[[Path], tuple[Any, int]]:
    def read(folder: Path) -> tuple[Any, int]:
        found, count = MetadataTable(f"{folder}/facts.{ending}").align(entries())
        return [found.column_names, *map(str, found.to_pylist()), count], 0

    return read


def read_source_facts(folder: Path) -> tuple[Any, int]:
    source = make_named(SOURCES, {"name": "imagefolder", "path": str(folder)}, "config.data.source")
    found = read_source(source)
    return str(found and found.align(entries())), int(source.broken.sum())


def write_many_columns(ending: str, count: int = 6_000) -> Spoil:
    """Writes a row with many columns, or as many objects with a name of their own."""

    def write(folder: Path, rng: Random) -> None:
        if ending == "csv":
            text = (
                ",".join(["file_name", *(f"c{n}" for n in range(count))]) + "\n0.png" + ",1" * count
            )
        elif ending == "jsonl":
            text = "\n".join(f'{{"file_name": "{n}.png", "c{n}": 1}}' for n in range(count))
        else:
            return write_parquet_facts(folder, **{f"c{n}": range(SIZE) for n in range(count)})
        (folder / f"facts.{ending}").write_text(text)

    return write


JSON_FACTS = [
    {"year": DEEP}, {"year": "[" * 100_000}, {"year": '7, "year": 8'}, {"year": "9" * 5000},
]  # fmt: skip
FACT_FAULTS = {
    "csv": [write_many_columns("csv")],
    "jsonl": [write_many_columns("jsonl"), *vary(write_facts("jsonl"), JSON_FACTS)],
    "json": vary(write_facts("json"), JSON_FACTS),
    "parquet": [write_many_columns("parquet")],
}
