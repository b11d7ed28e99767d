import numpy as np
import pytest
from samples import encode_image, make_pixels

from big_align.core.errors import UserError
from big_align.data.examples import BrokenExample, Source
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.sources.csv_source import CsvSource


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(20):
        image = encode_image(make_pixels(number))
        (tmp_path / "images" / f"{number}.png").write_bytes(image)
    return tmp_path


def write(folder, text: str, name: str = "train.csv") -> str:
    (folder / name).write_bytes(text.encode())
    return str(folder / name)


def test_rows_keep_their_order_and_what_they_say(folder):
    lines = [f'images/{n}.png,"the number, {n}",{n % 7}' for n in range(20)]
    path = write(folder, "image,text,class\n" + "\n".join(lines) + "\n")
    source = CsvSource(path, label="class", caption="text")
    assert isinstance(source, Source) and source.class_names is None
    with EvalLoader(source, "", batch_size=20) as loader:
        (batch,) = loader.images()
        assert batch["image"][:, 0, 0, 0].tolist() == list(range(20))
        np.testing.assert_array_equal(loader.labels(), np.arange(20) % 7)
        assert loader.captions() == [[f"the number, {n}"] for n in range(20)]
    assert source.name(1, 2) == "train.csv, line 20"
    assert CsvSource(path, caption="").read_text(1, 2) == ([], ())


def test_names_are_numbered_in_sorted_order(folder):
    rows = ["images/0.png\tpear", "images/1.png\tapple", "images/2.png\t", "images/3.png\tpear"]
    path = write(folder, "\ufeffimage\tkind\r\n" + "\r\n".join(rows), "train.tsv")
    source = CsvSource(path, label="kind")
    assert source.class_names == ("apple", "pear")
    assert [source.read(0, n).label for n in range(4)] == [1, 0, -1, 1]
    other = write(folder, "image;kind\nimages/1.png;apple\n\nimages/0.png;pear\n")
    other = CsvSource(other, label="kind", delimiter=";")
    assert other.class_names == source.class_names
    assert [other.read_text(0, n)[1] for n in range(2)] == [(0,), (1,)]
    assert [other.name(0, n) for n in range(2)] == ["train.csv, line 2", "train.csv, line 4"]


def test_several_labels_are_parted_by_bars_and_integers_by_spaces_too(folder):
    cells = ["11 15", "3", "", "2|11", " 4 | 4 ", "|"]
    rows = [f"images/{n}.png,{cell}" for n, cell in enumerate(cells * 3)]
    source = CsvSource(write(folder, "\n".join(["image,classes", *rows])), label="classes")
    with EvalLoader(source, "", batch_size=18) as loader:
        assert loader.label_sets() == [(11, 15), (3,), (), (2, 11), (4,), ()] * 3
        with pytest.raises(ValueError, match="train.csv, line 2: it has the labels 11, 15, where"):
            loader.labels()
    rows = ["images/0.png,potted plant", "images/1.png,tv| dog|tv", "images/2.png,dog|", ""]
    source = CsvSource(write(folder, "\n".join(["image,classes", *rows])), label="classes")
    assert source.class_names == ("dog", "potted plant", "tv")
    assert [source.read(0, n).labels for n in range(3)] == [(1,), (2, 0), (0,)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "train.csv is empty; its first line must name the columns"),
        ("image,label\n", "train.csv has no line after the names of the columns"),
        ("what,label\nimages/0.png,1\n", "of images; it has .what., .label.; set image=COLUMN"),
        ("image,class\nimages/0.png,1\n", "no column .label.; it has .image., .class.; set label="),
        ("image,label\nimages/0.png\n", "train.csv, line 2 has 1 columns and the first line 2"),
        ("image,label\nimages/0.png,1\n ,2\n", "train.csv, line 3 names no image in the column"),
        ("image,label\n99.png,1\n", "train.csv, line 2: there is no file .*; images are relative"),
        ("image,label\nimages\\0.png,1\n", "no file .*; folders are separated by /, not by a b"),
        ("image,label\nmy%20images/0.png,1\n", "there is no file .*; .* write a space for %20"),
        ("images/0.png,1\nimages/1.png,2\n", "first line of .* must name the columns, .* a row"),
        ("0.jpg#0\tA dog\n0.jpg#1\tA cat\n", "must name the columns, .* a row of the table"),
        ("image,label\nimages/0.png,1\nimages/1.png,x\n", "line 3: the label is 'x' and that of"),
        ("image,label\nimages/0.png,x\nimages/1.png,1\n", "line 3: the label is '1' and that of"),
        ("image,label\nimages/0.png,007\nimages/1.png,7\n", "line 3: the labels '7' and '007' of"),
        ("image,label\nimages/0.png,-3\n", "line 2: the label is -3, not a class number"),
        ("image,label\nimages/0.png,1 3\nimages/1.png,1|x\n", "line 3: the label is 'x' and that"),
        ("image,label\nimages/0.png,1|-3\n", "line 2: the label is -3, not a class number"),
        (
            'image,label\nimages/0.png,"1\n',
            "train.csv, line 2: .*unexpected end of data; a text with a",
        ),
    ],
)
def test_mistakes_name_file_and_line(folder, text, message):
    with pytest.raises(ValueError, match=message):
        CsvSource(write(folder, text), label="label")


def test_files_that_cannot_be_read_are_named(folder):
    with pytest.raises(ValueError, match="missing.csv cannot be read"):
        CsvSource(str(folder / "missing.csv"))
    (folder / "x.csv").write_bytes(b"image\na.png\n\xff.png\n")
    with pytest.raises(ValueError, match="x.csv, line 3 is not UTF-8.*iconv.*skip_bad_lines=True"):
        CsvSource(str(folder / "x.csv"))


def test_an_empty_caption_or_a_missing_image_is_a_broken_example(folder):
    path = write(folder, "image,text\nimages/0.png, \nimages/99.png,a\n")
    source = CsvSource(path, caption="text")
    with pytest.raises(BrokenExample, match="the caption is empty"):
        source.read(0, 0)
    with pytest.raises(BrokenExample, match="there is no file .*99.png"):
        source.read(0, 1)


@pytest.mark.parametrize(
    ("header", "choice", "message"),
    [
        ("what,title", {}, "usual name of images; it has 'what', 'title'; set image=COLUMN"),
        ("image,path,title", {}, "'image' and 'path', and either may hold the image.*image=image"),
        ("image,what", {}, "captions or labels; it has 'image', 'what'.*set caption=COLUMN"),
        ("image,title,Caption", {}, "'title' and 'Caption', and either.*set caption=title"),
        ("image,title", {"caption": "text"}, "no column 'text'; it has 'image', 'title'; set capt"),
        ("image::title", {}, "only one column, 'image::title'; if .*; set delimiter=CHARACTER"),
    ],
)
def test_an_ambiguous_or_unknown_header_names_its_columns(folder, header, choice, message):
    cells = ",".join(["images/0.png"] * (header.count(",") + 1))
    with pytest.raises(UserError, match=message):
        CsvSource(write(folder, f"{header}\n{cells}\n"), **choice)


def test_labels_beside_captions_are_read_where_they_are_asked_for(folder):
    path = write(folder, "Class;Path;Text\n3;images/0.png;a dog\n")
    assert CsvSource(path).read_text(0, 0) == (["a dog"], ())
    assert CsvSource(path, label="Class").read_text(0, 0) == (["a dog"], (3,))
    assert CsvSource(path, caption="", label="Class").read_text(0, 0) == ([], (3,))
    assert CsvSource(path, caption="").read_text(0, 0) == ([], ())
    path = write(folder, "Class;Path\n3;images/0.png\n")
    assert CsvSource(path).read_text(0, 0) == ([], (3,))


def test_rows_of_one_image_share_their_labels_and_captions(folder):
    rows = ["images/0.png,a,1", "images/1.png,b,2", "images/0.png, ,3", "./images/0.png,a c,1"]
    path = write(folder, "image,text,label\n" + "\n".join(rows) + "\n")
    source = CsvSource(path, label="label")
    assert source.shard_sizes.tolist() == [2]
    assert source.read_text(0, 0) == (["a", "a c"], (1, 3))
    assert source.read_text(0, 1) == (["b"], (2,)) and source.name(0, 1) == "train.csv, line 3"


def test_addresses_are_downloaded_first(folder):
    for header in ("url,caption", "caption,URL", "image,caption"):
        cells = ["https://x.org/a.jpg" if c != "caption" else "a" for c in header.split(",")]
        path = write(folder, f"{header}\n{','.join(cells)}\n")
        with pytest.raises(UserError, match="line 2: the image is an address.*img2dataset --url_l"):
            CsvSource(path)
    path = write(folder, "url,filepath,caption\nhttps://x.org/a.jpg,images/0.png,a\n")
    assert CsvSource(path).read_text(0, 0) == (["a"], ())


def test_a_folder_or_an_impossible_name_in_place_of_an_image_is_a_broken_example(folder):
    path = write(folder, f"image,text\nimages/0.png,a\nimages,b\n{'x' * 5000},c\na\0b,d\n")
    source = CsvSource(path)
    for number in (1, 2, 3):
        with pytest.raises(BrokenExample, match="cannot be read"):
            source.read(0, number)


def test_the_columns_found_are_told_in_one_line(folder, caplog):
    path = write(folder, "title\tfilepath\na\timages/0.png\n")
    with caplog.at_level("INFO", logger="absl"):
        CsvSource(path)
    assert "columns separated by a tab: image='filepath', caption='title'" in caplog.text


def test_a_delimiter_can_be_spelled(folder):
    path = write(folder, "image\ttext\nimages/0.png\ta\n")
    for delimiter in ("tab", "\\t", "\t"):
        assert CsvSource(path, delimiter=delimiter).read_text(0, 0) == (["a"], ())


def test_labels_with_decimals_are_those_without(folder):
    """As pandas writes integers where one is missing."""
    labels = ("0", "2", "10", "2|10", "")
    tables = [
        "image,label\n" + "".join(f"images/{n}.png,{x}\n" for n, x in enumerate(written))
        for written in (labels, ("0.0", "2.0", "10.00", "2.0|10.0", ""))
    ]
    whole, decimal = (CsvSource(write(folder, text), label="label") for text in tables)
    assert whole.class_names is None and decimal.class_names is None
    found = [[source.read_text(0, n)[1] for n in range(5)] for source in (whole, decimal)]
    assert found[0] == found[1] == [(0,), (2,), (10,), (2, 10), ()]
    names = CsvSource(write(folder, "image,label\nimages/0.png,2.5\nimages/1.png,v1.0\n"))
    assert names.class_names == ("2.5", "v1.0")


def test_a_delimiter_is_one_character(folder):
    path = write(folder, "image::label\nimages/0.png::1\n")
    with pytest.raises(UserError, match="delimiter is '::'; .* a single character; set delim"):
        CsvSource(path, delimiter="::")


def test_images_may_lie_in_a_folder_beside_the_table(folder):
    """As of Flickr8k, whose table names bare files."""
    path = write(folder, "image,caption\n1.png,a\n2.png,b\n")
    for skip in (False, True):
        source = CsvSource(path, skip_bad_lines=skip)
        assert source.key(0, 1) == f"{folder}/images/2.png" and source.read(0, 1).captions == ["b"]
    (folder / "1.png").write_bytes(
        encode_image(make_pixels(77))
    )  # the folder of the table is first
    assert CsvSource(path).key(0, 1) == f"{folder}/2.png"


def test_bars_may_separate_columns(folder):
    """As of Flickr30k's table, with its names of columns."""
    rows = ["image_name| comment_number| comment", "0.png| 0| A dog , a cat .", '0.png| 1| "Go" !']
    source = CsvSource(write(folder, "\n".join(rows)))
    assert source.read_text(0, 0) == (["A dog , a cat .", '"Go" !'], ())
    assert source.read(0, 0).image == (folder / "images" / "0.png").read_bytes()


def test_a_text_that_begins_with_a_quote_is_told_how_it_is_written(folder):
    path = write(folder, 'image\ttext\nimages/0.png\t"Hello" she said\n', "x.tsv")
    with pytest.raises(UserError, match="x.tsv, line 2: .*goes in double quotes, with its own dou"):
        CsvSource(path)
    write(folder, 'image\ttext\nimages/0.png\t"""Hello"" she said"\n', "x.tsv")
    assert CsvSource(path).read_text(0, 0) == (['"Hello" she said'], ())


def test_a_caption_without_quotes_may_have_commas(tmp_path):
    """In a table of images and captions alone; anything else stays a bad line."""
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(encode_image(make_pixels(0)))
    path = tmp_path / "captions.txt"
    path.write_text('image,caption\na.png,a dog , a cat, and a cow\nb.png,"a dog, a cat"\n')
    source = CsvSource(str(path))
    assert source.read_text(0, 0)[0] == ["a dog , a cat, and a cow"]
    assert source.read_text(0, 1)[0] == ["a dog, a cat"]
    for header, line in (
        ("image,caption", 'a.png,a "dog", cat'),
        ("image,caption", "a,b.png,dog"),
        ("image,caption", "a.png,dog,b.png"),
        ("image,caption,size", "a.png,dog,3,4"),
        ("image,label", "a.png,3,4"),
    ):
        path.write_text(f"{header}\n{line}\n")
        with pytest.raises(UserError, match="captions.txt, line 2 has . columns and the first"):
            CsvSource(str(path))
