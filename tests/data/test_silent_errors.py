"""Faults that look like data: each of them is refused, and the message names its place."""

import io
import json
import os
import re
import tarfile

import numpy as np
import pytest
from example_kinds import (
    Utf8Tokenizer,
    arrays,
    frame_record,
    make_record,
    read_records,
    write_npz,
    write_pax,
    write_records,
)
from folder_kinds import png_of_size
from list_kinds import embedded_source, write_embedded, write_tags
from PIL import Image
from samples import make_members, write_tar

from big_align.core.errors import UserError
from big_align.data import examples
from big_align.data.examples import BrokenExample, WrongLabel
from big_align.data.images import decoding
from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.precomputed.joins import Join
from big_align.data.sources.array_source import ArraySource, read_npz
from big_align.data.sources.record_source import TFRecordSource, mask_checksum, scan_records
from big_align.data.sources.tar_headers import scan_members
from big_align.data.sources.tar_source import TarSource
from big_align.data.tags.tag_list import read_tag_list


def test_a_record_that_changed_on_disk_is_broken(tmp_path, caplog):
    write_records(tmp_path)
    path = tmp_path / "x.tfrecord"
    path.write_bytes(path.read_bytes().replace(b"number 2", b"number 7"))
    source = TFRecordSource(str(path))
    assert source.read(0, 1).captions == ["number 1"]
    with pytest.raises(BrokenExample, match=r"record at byte \d+ does not have its checksum"):
        source.read_text(0, 2)
    with caplog.at_level("WARNING"):
        assert read_records(tmp_path)[1] == 1
    assert "skipped x.tfrecord: record 2: the record at byte" in caplog.text


def test_a_tail_of_zeros_is_no_records(tmp_path):
    """A gigabyte would be 67 million of length 0."""
    write_records(tmp_path)
    path = tmp_path / "x.tfrecord"
    size = path.stat().st_size
    os.truncate(path, 2**30)
    with open(path, "rb") as file:
        *found, last = scan_records(file, 2**30)
    assert len(found) == 6
    assert last[2] == f"the length at byte {size} does not have its checksum"


def test_compressed_records_say_so(tmp_path):
    (tmp_path / "x.tfrecord").write_bytes(b"\x1f\x8b" + bytes(100))
    with open(tmp_path / "x.tfrecord", "rb") as file:
        ((_, _, fault),) = scan_records(file, 102)
    assert "compressed" in fault and "unpack" in fault


@pytest.mark.parametrize("label", [2.9, -0.5, True, "1_0", "2.0", "\u0663", float("inf"), None, {}])
def test_what_is_no_integer_is_no_label(label):
    with pytest.raises(WrongLabel, match="not an integer"):
        examples.clean_label(label)


@pytest.mark.parametrize("label", ["9" * 5000, 10**4000, -3, "-3", 2**31])
def test_what_is_out_of_range_is_no_label(label):
    with pytest.raises(WrongLabel) as error:
        examples.clean_label(label)
    assert len(str(error.value)) < 120


def test_integers_are_labels_however_they_are_written():
    written = [7, "7", " 7\n", "+7", 7.0, np.int32(7), np.float64(7), "007"]
    assert [examples.clean_label(label) for label in written] == [7] * len(written)


@pytest.mark.parametrize("value", [2.7, -5, np.nan, 2**40])
def test_an_array_of_labels_holds_class_numbers(tmp_path, value):
    write_npz(tmp_path, label=np.array([0, 1, 2, value, 1, 2]))
    with pytest.raises(UserError, match=f"x.npz: 3: the label is {re.escape(str(value))}"):
        read_npz(str(tmp_path / "x.npz"))
    with pytest.raises(UserError, match="array: 0: the label is 2.7"):
        ArraySource(arrays()["image"], [[]] * 6, [2.7] * 6)
    assert ArraySource(arrays()["image"], [[]] * 6, [2.0] * 6).read_text(0, 0) == ([], (2,))


@pytest.mark.parametrize("member", ["000001.png", "000001.txt"])
def test_a_member_that_stands_twice_breaks_its_example(tmp_path, member, caplog):
    """The last one would win without a word; the log names the key and both places."""
    members = [part for n in range(3) for part in make_members(n)[:2]]
    data = dict(members)[member]
    path = write_tar(tmp_path / "x.tar", [*members, (member, data)])
    places = [m[1] for m in scan_members(open(path, "rb"), 10**6) if m[0] == member]
    with caplog.at_level("WARNING"):
        source = TarSource(path)
    assert [source.read(0, n).key for n in range(2)] == ["000000", "000002"]
    assert source.shard_sizes.tolist() == [2] and source.broken.tolist() == [1]
    said = f"x.tar: 1 examples are left out; of the first {member} is at byte {places[1]}, and "
    assert said + f"its like at byte {places[0]}" in caplog.text


def test_two_images_of_an_example_are_told_apart_by_name(tmp_path):
    members = make_members(0)[:2] + [("000000.jpg", b"another")]
    path = write_tar(tmp_path / "x.tar", members)
    with pytest.raises(ValueError, match="000000.jpg is at byte"):
        TarSource(path)
    assert TarSource(path, image="png").read(0, 0).image == members[0][1]
    assert TarSource(path, image="jpg").read(0, 0).image == b"another"


def test_shards_laid_end_to_end_hold_the_examples_of_all(tmp_path):
    """With what GNU tar writes after an end mark, and with more."""
    whole = b""
    for number, zeros in ((0, 0), (1, 512), (2, 3 * 2**20)):
        path = write_tar(tmp_path / "one.tar", make_members(number))
        whole += open(path, "rb").read() + bytes(zeros)
    (tmp_path / "x.tar").write_bytes(whole)
    source = TarSource(str(tmp_path / "x.tar"))
    assert [source.read(0, n).captions for n in range(3)] == [[f"number {n}"] for n in range(3)]
    assert source.broken.tolist() == [0]
    (tmp_path / "x.tar").write_bytes(whole + b"no header" * 100)
    source = TarSource(str(tmp_path / "x.tar"))
    assert source.shard_sizes.tolist() == [3] and source.broken.tolist() == [1]
    assert "after an end mark" in source._indexes[0].fault


GRAY = {
    "16 bits": (np.array([[0, 4096, 65535]], np.uint16), [0, 16, 255]),
    "16 bits, dark": (np.array([[0, 255, 4095]], np.uint16), [0, 0, 15]),
    "32 bits": (np.array([[0, 2**29, 2**30]], np.int32), [0, 128, 255]),
    "negative": (np.array([[-100, 0, 100]], np.int32), [0, 128, 255]),
    "float of 1": (np.array([[0, 0.2, 1]], np.float32), [0, 51, 255]),
    "float of 255": (np.array([[0, 51, 200]], np.float32), [0, 51, 200]),
    "float of 65535": (np.array([[0, 257, 65535]], np.float32), [0, 1, 255]),
    "float below 0": (np.array([[-1, 0, 1]], np.float32), [0, 128, 255]),
}


@pytest.mark.parametrize("kind", GRAY)
def test_gray_of_any_depth_is_scaled_to_8_bits(kind):
    values, wanted = GRAY[kind]
    file = io.BytesIO()
    Image.fromarray(values).save(file, "TIFF")
    shown = decoding.to_rgb(decoding.open_picture(file.getvalue()))
    np.testing.assert_array_equal(np.asarray(shown)[0], np.repeat(np.array(wanted)[:, None], 3, 1))


def test_pixels_that_are_no_numbers_are_broken():
    for value in (np.nan, np.inf):
        with pytest.raises(BrokenExample, match="NaN or infinite"):
            decoding.scale_gray(np.array([[0, value]], np.float32))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weight": "NaN"}, "the weight nan"),
        ({"weight": "-1"}, "the weight -1"),
        ({"weight": "Infinity"}, "the weight inf"),
        ({"count": "2.7"}, "the count 2.7"),
        ({"count": "-1"}, "the count -1"),
        ({"tokens": "[-7]"}, "the tokens .-7."),
        ({"tokens": "[1.5]"}, "the tokens .1.5."),
        ({"tokens": "[1099511627776]"}, "the tokens .1099511627776."),
        ({"tokens": "[true]"}, "the tokens .True."),
    ],
)
def test_a_tag_list_holds_numbers_that_can_be(tmp_path, change, said):
    write_tags(tmp_path, **change)
    with pytest.raises(UserError, match=f"x.json: tag 2 .'tag2'. has {said}; "):
        read_tag_list(str(tmp_path / "x.json"))


def test_a_tag_has_tokens_of_the_vocabulary(tmp_path):
    """Also where the list says that it was made for the tokenizer."""
    write_tags(tmp_path, tokens="[7, 256]")
    tags = read_tag_list(str(tmp_path / "x.json"))
    assert tags.tokenizer == Utf8Tokenizer.fingerprint
    with pytest.raises(UserError, match="'tag2' has the token 256, and the vocabulary .* has 256"):
        tags.check_tokenizer(Utf8Tokenizer())


@pytest.mark.parametrize("row", [np.nan, [0, 1, 2, np.inf]])
def test_an_embedding_that_is_not_finite_is_refused(tmp_path, row):
    write_embedded(tmp_path, row=row)
    folder = EmbeddingFolder(tmp_path / "x")
    join = Join(folder, embedded_source())
    np.testing.assert_array_equal(join.read(0, 1, "1"), [4, 5, 6, 7])
    with pytest.raises(BrokenExample, match="its embedding in .*x is not finite"):
        join.read(0, 2, "2")
    assert folder.read(0, 2).shape == folder.take(np.array([1, 4])).shape == (2, 4)
    for read in (lambda: folder.read(1, 4), lambda: folder.take(np.array([4, 2]))):
        with pytest.raises(UserError, match=r"000000-x.npz.npy: row 2 is not finite"):
            read()


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(monkeypatch):
    """13,300 x 13,300 pixels in 200 kB would take 0.8 GB and more."""
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("decoded"))
    data = png_of_size(13300, 13300, 1)
    with pytest.raises(BrokenExample, match="13300 x 13300 pixels.* max_pixels=100000000"):
        decoding.open_picture(data)
    decoding.raise_pillow_limit(13300**2)
    assert decoding.open_picture(data, max_pixels=13300**2).size == (13300, 13300)


@pytest.mark.parametrize(
    "records", [b"0 path=x\n", b"-5 path=x\n", b"9 path=x", b"14 size=-9999\n"]
)
def test_a_broken_extended_header_ends_a_shard(tmp_path, records):
    """A record of length 0 would never end, nor a size below 0."""
    write_pax(tmp_path, "0002.png", records)
    size = (tmp_path / "x.tar").stat().st_size
    with open(tmp_path / "x.tar", "rb") as file:
        *found, last = scan_members(file, size)
    assert len(found) == 4 and re.search("header at byte", last[3])


def test_a_key_takes_no_more_room_than_a_kilobyte(tmp_path, caplog):
    members = [part for n in range(40) for part in make_members(n)[:2]]
    members += [("x" * 10**6 + ".png", members[0][1]), ("x" * 10**6 + ".txt", b"long")]
    with caplog.at_level("WARNING"):
        source = TarSource(write_tar(tmp_path / "x.tar", members))
    assert source._indexes[0].keys.nbytes < 40 * 1024
    assert source.shard_sizes.tolist() == [40] and source.broken.tolist() == [1]
    assert "a key of more than 1024 characters" in caplog.text


def test_a_member_over_4_gigabytes_is_left_out(tmp_path, caplog):
    """A sparse file; what stands behind it is read."""
    path, large = tmp_path / "x.tar", 2**32 + 512
    write_tar(path, [part for n in range(2) for part in make_members(n)[:2]])
    end = max(start + size for _, start, size, _ in scan_members(open(path, "rb"), 10**6))
    with open(path, "r+b") as file:
        file.truncate(-(-end // 512) * 512)
        file.seek(0, 2)
        for name, size in (("big.png", large), ("big.txt", 3)):
            info = tarfile.TarInfo(name)
            info.size = size
            file.write(info.tobuf(tarfile.GNU_FORMAT))
            file.truncate(file.tell() + -(-size // 512) * 512)
            file.seek(0, 2)
        file.truncate(file.tell() + 1024)
    with caplog.at_level("WARNING"):
        source = TarSource(str(path))
    assert source.shard_sizes.tolist() == [2] and source.broken.tolist() == [1]
    assert f"big.png has {large} bytes" in caplog.text


def test_half_an_index_is_scanned_again(tmp_path):
    path = write_tar(tmp_path / "x.tar", [part for n in range(9) for part in make_members(n)])
    folder = tmp_path / "index"
    whole = TarSource(path, index_dir=str(folder))
    (cache,) = folder.iterdir()
    kept, rng = cache.read_bytes(), np.random.default_rng(0)
    for cut in [*range(0, len(kept), 97), len(kept) - 1]:
        flipped = bytearray(kept)
        flipped[rng.integers(len(kept))] ^= 1 << rng.integers(8)
        for data in (kept[:cut], bytes(flipped)):
            cache.write_bytes(data)
            source = TarSource(path, index_dir=str(folder))
            assert source.read(0, 8) == whole.read(0, 8)
            assert source.shard_sizes.tolist() == [9] and source.broken.tolist() == [0]


def test_a_damaged_npz_is_an_error_that_names_it(tmp_path):
    """Wherever it is cut or a bit is flipped: what is read is what was written."""
    write_npz(tmp_path)
    path = tmp_path / "x.npz"
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    want = [read_npz(str(path)).read_text(0, n) for n in range(6)]
    for cut in range(0, len(whole), 41):
        path.write_bytes(whole[:cut])
        with pytest.raises(UserError, match="x.npz is no whole .npz file: "):
            read_npz(str(path))
    refused = 0
    for place in range(0, len(whole), 13):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.integers(8)
        path.write_bytes(flipped)
        try:
            source = read_npz(str(path))
        except UserError as error:
            assert "x.npz" in str(error) and "\n" not in str(error)
            refused += 1
        else:
            assert [source.read_text(0, n) for n in range(6)] == want
            np.testing.assert_array_equal(source._image, arrays()["image"])
    assert refused > 50


def test_the_checksum_of_a_record_is_that_of_the_format(tmp_path):
    """By hand, bit by bit; and "123456789" has the CRC-32C e3069283."""
    crc = 0xE3069283
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert mask_checksum(b"123456789") == masked.to_bytes(4, "little")
    record = make_record(0)
    assert frame_record(record)[-4:] == mask_checksum(record)


def test_an_index_of_embeddings_lists_shards(tmp_path):
    for entry in (7, {"name": "x"}, {"name": "x", "file": "../x", "count": 6}):
        write_embedded(tmp_path)
        index = json.loads((tmp_path / "x" / "index.json").read_text())
        index["shards"].append(entry)
        (tmp_path / "x" / "index.json").write_text(json.dumps(index))
        with pytest.raises(UserError, match=r"index.json: entry 1 of `shards` (needs|has) a"):
            EmbeddingFolder(tmp_path / "x")
