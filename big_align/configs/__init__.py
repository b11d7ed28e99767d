"""In a checkout, the configs of the folder `configs/`; where the package is installed, they are here."""

import pathlib

__path__ = [str(pathlib.Path(__file__).resolve().parents[2] / "configs")]
