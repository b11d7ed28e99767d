"""Offline jobs: each is a small command line over library functions."""

import sys

from big_align import huge_pages

if sys.argv[:1] == ["-m"]:  # python -m big_align.tools.NAME, whose module comes next
    huge_pages.restart()
