"""Lines of tables, read one at a time and of bounded length, and the handling of bad ones."""

import collections
import csv
import io
import itertools
import re
from collections.abc import Iterator

from big_align.core.errors import UserError, put_in_a_line
from big_align.data import columns, files
from big_align.data.examples import IMAGE_EXTENSIONS

LINE_MAX = 2**24  # characters; anything longer is not a line of a table
BUFFER = 2**20  # bytes that are read at a time
QUOTED = "a text with a quote in it goes in double quotes, with its own doubled"
IMAGE_FILE = re.compile(rf"\.({'|'.join(IMAGE_EXTENSIONS)})(#\d+)?$", re.IGNORECASE)
"""The end of a cell that names an image; in Flickr8k's tables, also the number of its caption."""
NAMED = ("file", "address", " file", " address")
"""The shapes of cells that name an image, see `_shape`."""


class BadLines:
    """The handling of lines that cannot be used: the first ends the reading, or all are noted.

    `skip` says which, and None that it cannot be set. The unit is what messages number, a line or
    an object of a JSON list. `found` says by number why each bad line cannot be used.
    """

    def __init__(self, path: str, skip: bool | None = None, unit: str = "line"):
        self.path, self.skip, self.unit = path, skip, unit
        self.found: dict[int, str] = {}

    def add(self, line: int, told: str) -> None:
        """Notes why a line is bad, or raises UserError; `told` follows "FILE, line 3"."""
        if not self.skip:
            advice = f"; skip_bad_lines=True leaves such {self.unit}s out"
            self.refuse(line, told + advice * (self.skip is False))
        self.found.setdefault(line, put_in_a_line(told.removeprefix(":").strip()))

    def refuse(self, line: int, told: str) -> None:
        """Raises UserError about a line that is needed to read anything."""
        raise UserError(f"{self.path}, {self.unit} {line}{told}")


SEPARATOR = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
"""What Excel writes before a table to say what separates its columns."""


def read_text_lines(bad: BadLines, newline: str = "") -> Iterator[tuple[int, str]]:
    r"""Yields the number of each line of a table, and its text with the line ending.

    The encoding is that of `files.decode`. Lines that are not UTF-8 or longer than `LINE_MAX` are
    bad; a long one is never held as a whole. The newline "" ends lines at "\n", "\r" and "\r\n",
    and "\n" only at that. A bad first line is a UserError.
    """
    first = True
    try:
        with files.files_of(bad.path).open(bad.path) as file:
            buffer = io.BufferedReader(file, BUFFER)
            encoding = files.find_encoding(buffer.peek(4))
            lines = io.TextIOWrapper(buffer, encoding, "surrogateescape", newline)
            number = 0
            while line := lines.readline(LINE_MAX):
                number += 1
                fault = _find_fault(line, lines)
                if fault and first:  # it may name the columns
                    bad.refuse(number, fault)
                if fault:
                    bad.add(number, fault)
                else:
                    yield number, line
                first = first and not line.strip()
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{bad.path} cannot be read: {error}") from error


def _find_fault(line: str, lines: io.TextIOWrapper) -> str:
    """Returns what is wrong with a line; skips the rest of one that is too long."""
    if len(line) == LINE_MAX and line[-1] not in "\r\n":
        rest = lines.readline(LINE_MAX)
        if rest.strip("\r\n"):
            while rest and rest[-1] not in "\r\n":
                rest = lines.readline(LINE_MAX)
            return f" has more than {LINE_MAX:,} characters"
    if not line.isascii():
        try:
            line.encode("utf-8", "surrogateescape").decode("utf-8")
        except UnicodeDecodeError as error:
            return f" is not UTF-8: {error}; {files.CONVERTED}"
    if files.is_unmarked(line.count("\0"), len(line)):
        return f" {files.UNMARKED}"
    return ""


class _Taken:
    """Lines, of which the ones taken last can be given back."""

    def __init__(self, lines: Iterator[tuple[int, str]]):
        self._lines, self._back = lines, collections.deque[tuple[int, str]]()
        self.taken: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        found = self._back.popleft() if self._back else next(self._lines)
        self.taken.append(found)
        return found[1]

    def give_back(self) -> None:
        """Gives back all lines that were taken except the first."""
        self._back.extendleft(reversed(self.taken[1:]))


def take_separator(lines: Iterator[tuple[int, str]]) -> tuple[str, Iterator[tuple[int, str]]]:
    """Returns what Excel's first line, `sep=;`, says that separates the columns, and the others.

    It is "" if there is no such line. The others begin with the first that is not empty.
    """
    first = next((line for line in lines if line[1].strip()), (1, ""))
    found = SEPARATOR.fullmatch(first[1].strip("\r\n"))
    return (found[1], lines) if found else ("", itertools.chain([first], lines))


def read_rows(
    lines: Iterator[tuple[int, str]], delimiter: str, bad: BadLines, spaces: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of the first line and the cells of each row; the first names the columns.

    A text that begins with a quote swallows the lines after it, up to a text that ends with one. In
    a table of images and captions alone, a caption without quotes may have delimiters in it. So if
    a row cannot be used, or if a line inside of it reads as a row itself, only its first line is
    bad, and reading goes on with the second.

    Spaces after a delimiter are part of the cell unless `spaces` is False. A bad first row is a
    UserError.
    """
    source = _Taken(lines)
    header: list[str] = []
    while True:
        source.taken, cells, fault = [], [], ""
        try:
            options = {"delimiter": delimiter, "skipinitialspace": not spaces, "strict": True}
            cells = next(csv.reader(source, **options))
        except StopIteration:
            break
        except csv.Error as error:
            fault = f": {error}; {QUOTED}"
        first, last = source.taken[0][0], source.taken[-1][0]
        if header and not fault and len(cells) > len(header):
            cells = _split_bare_caption(header, source.taken[0][1], delimiter) or cells
        if last - first >= len(source.taken):
            fault = " begins a text that goes on over a bad line"
        elif header and not fault and len(cells) not in (0, len(header)):
            fault = (
                f" has {len(cells)} columns and the first line {len(header)}; a text with "
                f"{delimiter!r} in it goes in double quotes"
            )
        elif header and not fault and (inner := _find_inner_row(source.taken, cells, delimiter)):
            fault = (
                f" begins a text in quotes, in which line {inner} is a row of the table; {QUOTED}"
            )
        if fault and not header:
            bad.refuse(first, fault)
        if fault:
            bad.add(first, fault)
            source.give_back()
        elif cells:
            if not header:
                cells = header = [cell.strip() for cell in cells]
            yield first, cells
    if not header:
        raise UserError(f"{bad.path} is empty; its first line must name the columns")


def read_records(text: str, delimiter: str, bad: BadLines) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number of the first line and the cells of each row of a short table, by column."""
    separator, lines = take_separator(enumerate(io.StringIO(text, newline=""), 1))
    rows = read_rows(lines, separator or delimiter, bad, spaces=False)
    _, header = next(rows)
    for number, cells in rows:
        yield number, dict(zip(header, cells, strict=True))


def _split_bare_caption(header: list[str], line: str, delimiter: str) -> list[str]:
    """Returns the two cells of a line whose caption has delimiters but no quotes; [] of others.

    A text has a space or a digit beside its commas.
    """
    image, _, caption = line.strip("\r\n").partition(delimiter)
    mark = re.escape(delimiter)
    usual = [
        any(name.lower() in group for group in groups)
        for name, groups in zip(header, (columns.FILES, columns.CAPTIONS), strict=False)
    ]
    if len(header) != 2 or not all(usual) or '"' in line or not IMAGE_FILE.search(image.strip()):
        return []
    return [] if re.search(rf"(?<![\s\d]){mark}(?![\s\d])", caption) else [image, caption]


def _find_inner_row(taken: list[tuple[int, str]], cells: list[str], delimiter: str) -> int | None:
    """Returns the number of a line that reads as a row, inside of a row of several lines."""
    ends = [n for n, cell in enumerate(cells) if "\n" in cell or "\r" in cell]
    for place, (number, line) in enumerate(taken if ends else ()):
        # the first line also has the cells before the quote, and the last one those after it
        first = ends[0] + 1 if place == 0 else 0
        end = ends[-1] if place == len(taken) - 1 else len(cells)
        found = line.strip("\r\n").split(delimiter)
        if _names_image(found, cells[first : ends[0]], cells[ends[-1] + 1 : end]):
            return number
        if _is_row(found, cells, delimiter, slice(first, end)):
            return number
    return None


def _names_image(found: list[str], before: list[str], after: list[str]) -> bool:
    """Returns whether a line names an image where a row does, however many commas its text has.

    Args:
      found: the cells of the line.
      before: the cells of the row before its text; those of the line are counted from its start.
      after: the cells of the row after its text; those of the line are counted from its end.
    """
    own = zip(before + after, found[: len(before)] + found[len(found) - len(after) :], strict=False)
    longer = len(found) > len(before) + len(after)
    return longer and any(_shape(a) in NAMED and _shape(a) == _shape(b) for a, b in own)


def _is_row(found: list[str], cells: list[str], delimiter: str, compared: slice) -> bool:
    """Returns whether a line has cells as a row has them, and not a text's commas.

    There are as many. If some of those that are compared name a file or a number, so does the line;
    otherwise nothing is beside a delimiter that a text would have there.
    """
    own = cells[compared]
    if not own or len(found) != len(cells):
        return False
    shapes = [(_shape(a), _shape(b)) for a, b in zip(own, found[compared], strict=True)]
    if any(shape for shape, _ in shapes):
        return any(shape and shape == other for shape, other in shapes)
    mark = re.escape(delimiter)
    return not re.search(rf"\d{mark}\d|\s{mark}|{mark}\s", delimiter.join(found).strip())


def _shape(cell: str) -> str:
    """Returns what cells have in common that name an image or number it; "" for a text."""
    spaced = re.search(r"\s", cell.strip())
    if "://" in cell:
        kind = "" if spaced else "address"
    elif IMAGE_FILE.search(cell.strip()):
        kind = "" if re.search(r"[\r\n]", cell.strip()) else "file"
    else:
        kind = re.sub(r"\d", "0", cell.strip())
        kind = kind if "0" in kind[1:] and not spaced else ""
    return kind and " " * cell[:1].isspace() + kind  # a text has a space after its commas
