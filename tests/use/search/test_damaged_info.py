"""An `index.json` that is not as it was written is one line that names it."""

import json
import shutil

import pytest

from big_align.core.errors import UserError
from big_align.core.file_checksums import SEAL
from big_align.use.search.search_index import SearchIndex


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    ("field", "value"),
    [("search", None), ("search", {}), ("search", {"images": 3}), ("search", {"images": {}})]
    + [("search", {"images": {"method": "scann"}}), ("transform", 3), ("model", ["x"])]
    + [("generation", "x"), ("format", None), ("files", [])],
)
def test_a_field_that_is_something_else(model, table_index, tmp_path, field, value, sealed):
    folder = tmp_path / "index"
    shutil.copytree(table_index, folder)
    path = folder / "index.json"
    info = json.loads(path.read_text()) | {field: value}
    path.write_text(json.dumps({k: v for k, v in info.items() if sealed or k != SEAL}))
    with pytest.raises(UserError) as error:
        SearchIndex(str(folder), model).search("a dog")
    assert str(folder) in str(error.value) and "\n" not in str(error.value)
