"""What the pages of the manual hold: commands, Python, links and headings."""

import pathlib
import re
import shlex
from typing import NamedTuple

from big_align.tools.__main__ import RUNS

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
LANGUAGES = ("sh", "console", "python", "text", "math")
"""Of fenced blocks; `console` has commands after "$ " and output, an indented block commands."""


class Block(NamedTuple):
    """A code block.

    Attributes:
      page: the file, from the top of the checkout.
      line: of the page where it begins.
      language: as the fence says; "sh" for an indented block.
      text: without fence or indentation.
    """

    page: str
    line: int
    language: str
    text: str


class Command(NamedTuple):
    """A simple command: `&&` parts them.

    Attributes:
      page: the file, from the top of the checkout.
      text: as it stands there, continued lines joined, comments left out.
    """

    page: str
    text: str


def read_blocks(page: str) -> list[Block]:
    """Returns the code blocks of a page in their order."""
    lines = (ROOT / page).read_text().splitlines()
    blocks, start = [], 0
    while start < len(lines):
        fence = re.fullmatch(r"```(\w*)", lines[start])
        indented = lines[start].startswith("    ") and (not start or not lines[start - 1].strip())
        end = start + 1
        if fence:
            while lines[end] != "```":
                end += 1
            text = lines[start + 1 : end]
            blocks.append(Block(page, start + 1, fence[1], "\n".join(text)))
        elif indented:
            while end < len(lines) and lines[end].startswith("    "):
                end += 1
            text = [line[4:] for line in lines[start:end]]
            blocks.append(Block(page, start + 1, "sh", "\n".join(text)))
        start = end + bool(fence)
    return blocks


def read_commands(page: str) -> list[Command]:
    """Returns the commands of a page in their order."""
    commands = []
    for block in read_blocks(page):
        if block.language not in ("sh", "console"):
            continue
        text = re.sub(r"\\\n\s*", "", block.text)
        if block.language == "console":
            text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
        # What a here-document holds is input.
        text = re.sub(r"(<<(\w+))\n.*?\n\2(?=\n|$)", r"\1", text, flags=re.DOTALL)
        for line in text.splitlines():
            line = re.sub(r"(^|\s)#.*", "", line).strip()
            commands += [Command(page, part.strip()) for part in line.split("&&") if part.strip()]
    return commands


def read_inline(page: str) -> list[Command]:
    """Returns the commands that stand in a sentence or a table, in backticks: `python ...`."""
    prose = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    return [
        Command(page, text)
        for text in re.findall(r"`((?:python|pytest|big-align) [^`\n]+)`", prose)
    ]


def find_program(text: str) -> list[str]:
    """Returns the words of a command from its own program on.

    Variables, `time` and launchers stand before it: `A=1 launch/local.sh 2 -- python main.py`. What
    `big-align` does is spelled as Python's command, the path of a run as its workdir.
    """
    words = [word for word in shlex.split(text) if word not in ("&", ";")]
    for number, word in enumerate(words):
        if word == "python":
            return words[number:]
    while words and (words[0] == "time" or re.match(r"\w+=", words[0])):
        del words[0]
    if words[0] != "big-align" or words[1].startswith("-"):
        return words
    name, rest = words[1], words[2:]
    if name not in RUNS:
        return ["python", "-m", f"big_align.tools.{name}", *rest]
    if rest and not rest[0].startswith("-"):
        rest[0] = f"--workdir={rest[0]}"
    return ["python", "-m", "big_align", f"--mode={name}", *rest]


def read_links(page: str) -> list[str]:
    """Returns the targets of the links and pictures of a page that lie in the checkout."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target for target in targets if not re.match(r"\w+://", target)]


def read_anchors(page: str) -> set[str]:
    """Returns the anchors that GitHub gives the headings of a page."""
    anchors, fenced = set(), False
    for line in (ROOT / page).read_text().splitlines():
        fenced ^= line.startswith("```")
        if heading := not fenced and re.match(r"#+ (.*)", line):
            words = re.sub(r"[^\w\- ]", "", heading[1].lower())
            anchors.add(words.replace(" ", "-"))
    return anchors
