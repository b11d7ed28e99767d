"""What the site shows of the code: every public name, field and command, outputs, and the house."""

import importlib
import pathlib
import re
import subprocess
import sys

import nbformat
import pytest

import big_align
from big_align.config.components import tables
from big_align.config.components.signatures import list_settable, lookup
from tests.house import PAGE, arrows, read_drawn
from tests.manual import ROOT
from tests.run_main import environment


@pytest.fixture(scope="module")
def made():
    pytest.importorskip("latex2mathml", reason="the site needs pip install -e '.[docs]'")
    from website.made import config_fields, formulas, house, notebooks, public_names

    return {m.__name__.rpartition(".")[2]: m for m in
            (config_fields, formulas, house, notebooks, public_names)}  # fmt: skip


def test_every_public_name_is_on_one_page(made):
    text = "".join(made["public_names"].make_pages().values())
    named = re.findall(r"heading: big_align\.(\w+)", text)
    assert sorted(named) == sorted(big_align.FACE)
    shown = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    assert {f"{module}.{name}" for name, module in big_align.FACE.items()} <= set(shown)
    for path in shown:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path


def test_what_extensions_import_is_in_the_reference(made):
    pages = made["public_names"].make_pages()
    page = (ROOT / "docs" / "extend.md").read_text()
    imports = re.findall(r"^from (big_align\.[\w.]+) import (.*)$", page, re.MULTILINE)
    wanted = {f"{module}.{name}" for module, names in imports for name in names.split(", ")}
    assert len(wanted) > 8
    assert wanted <= set(re.findall(r"^::: ([\w.]+)$", pages["reference/protocols.md"], re.M))


def test_every_field_of_every_component_is_a_row(made):
    pages = made["config_fields"].make_pages()
    for page, (_, place, table) in made["config_fields"].TABLES.items():
        text = pages[f"reference/config/{page}.md"]
        for name in table:
            section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
            rows = re.findall(r"^\| `(\w+)` \| .* \| \S.* \| \S.* \|", section, re.MULTILINE)
            assert rows == list(list_settable(lookup(name, table, place))), (page, name)
    rows = [
        line.count(" | ")
        for text in pages.values()
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    assert set(rows) == {4}  # no value breaks a row


def test_a_config_is_named_where_it_sets_another_value(made):
    uses = made["config_fields"].find_uses()
    target = lookup("mlcd", tables.OBJECTIVES, "objective")
    assert "mlcd_cifar10" in uses[target, "num_clusters"]
    assert "mlcd" in uses[target, "num_clusters"]
    assert "mlcd" not in uses[target, "scale"]  # the paper's, which is the default
    assert "quickstart" in uses[None, "total_steps"] and "quickstart" not in uses[None, "seed"]


def test_the_house_has_all_rooms_and_no_arrow_leads_up(made):
    house = made["house"]
    plan = house.read_plan(read_drawn(PAGE.read_text()))
    middles = house.place_rooms(plan)
    assert sorted(middles) == sorted(room for rooms in plan.floors.values() for room in rooms)
    assert {room for ends in arrows() for room in ends} <= set(middles)
    assert len(set(middles.values())) == len(middles)
    for here, there in plan.arrows:
        assert middles[here][1] < middles[there][1], (here, there)
    drawn = house.draw(read_drawn(PAGE.read_text()))
    assert drawn.count("marker-end") == len(plan.arrows) and drawn.count('class="room"') == len(
        middles
    )


def test_a_formula_is_markup_that_browsers_draw(made):
    written = made["formulas"].write_fence(r"\frac{a}{b} < c", "math", "formula")
    assert "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi></mrow></mfrac>" in written
    assert 'display="block"' in written and "\\frac" not in written


def test_a_page_shows_what_a_cell_printed_last_and_its_pictures(made):
    picture = {"image/png": "aGVsbG8="}
    cell = nbformat.v4.new_code_cell("1 + 1", outputs=[
        nbformat.v4.new_output("stream", text="5%  \r10%"),
        nbformat.v4.new_output("stream", text="\r100%\n\x1b[31mred\x1b[0m\n"),
        nbformat.v4.new_output("display_data", picture),
        nbformat.v4.new_output("execute_result", {"text/plain": "2"}),
    ])  # fmt: skip
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Title"), cell])
    files = made["notebooks"].write_page("own", notebook)
    assert files["notebooks/own/1-1.png"] == b"hello"
    assert files["notebooks/own.md"] == (
        "# Title\n\n```python\n1 + 1\n```\n\n```text\n100%\nred\n```\n\n"
        "![What the cell shows](own/1-1.png)\n\n```text\n2\n```\n"
    )


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_nothing_of_others(made, tmp_path):
    variables = environment(1) | {
        "BIG_ALIGN_SITE_NOTEBOOKS": "unexecuted",
        "NO_MKDOCS_2_WARNING": "1",
    }
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr[-3000:]
    pages = list(pathlib.Path(tmp_path).rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        tags = re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", page.read_text())
        loaded = [tag for tag in tags if re.search(r"(src|href)=\"?https?:", tag)]
        assert [tag for tag in loaded if "rel=canonical" not in tag.replace('"', "")] == [], page
