"""Files that pictures are written to."""

import pathlib

from big_align.core.errors import WrongValue
from big_align.core.whole_files import check_file


def check_picture(path: str) -> None:
    """Checks, before there is a picture, that one can be written to a path; makes its folder.

    Its name must end in a format of pictures.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if pathlib.Path(path).suffix.removeprefix(".").lower() not in known:
        raise WrongValue(f"--output={path} must end in a format of pictures: .png, .pdf or .svg")
    check_file(path)
