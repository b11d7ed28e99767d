"""In a checkout, the configs of the folder `configs/`; in an installed package they are here."""

import pathlib

__path__ = [str(pathlib.Path(__file__).resolve().parents[2] / "configs")]
