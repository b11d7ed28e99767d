"""A folder that processes share."""

import pytest


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.slow)])
def folder(request, tmp_path):
    """On a disk and in a bucket."""
    if request.param == "bucket":
        request.getfixturevalue("bucket")
        return "s3://pairs/work"
    return str(tmp_path / "work")
