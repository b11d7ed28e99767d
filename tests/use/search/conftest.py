"""The model of all tests here, and an index of a table made with it."""

import pytest
from indexes import build, write_table

import big_align
from tests.use.inference.test_loaded_model import DUAL, SEEN, TOKENIZER, make_pretrained


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """A folder of weights of a small dual encoder."""
    path = tmp_path_factory.mktemp("weights") / "dual"
    pretrained = make_pretrained(DUAL, preprocessing=SEEN, tokenizer=TOKENIZER, temperature=0.1)
    big_align.save(path, pretrained, format="big_align")
    return path


@pytest.fixture(scope="session")
def model(weights):
    return big_align.load(weights, batch_size=16, progress=False)


@pytest.fixture(scope="session")
def table_index(model, tmp_path_factory):
    """An index of 20 photographs of a table with captions, years and places."""
    from big_align.use.search.metadata import MetadataTable

    folder = tmp_path_factory.mktemp("table")
    table = write_table(folder / "photos", 20)
    settings = {"dtype": "float32"}
    build(model, table, folder / "index", settings=settings, metadata=MetadataTable(table))
    return folder / "index"
