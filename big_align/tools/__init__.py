"""Offline jobs: each is a small command line over library functions."""

import sys

from big_align.core import huge_pages

if sys.argv[:1] == ["-m"]:  # run as python -m big_align.tools.NAME, whose module is imported next
    huge_pages.restart()
