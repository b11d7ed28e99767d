"""Files that pictures are written to."""

import pathlib

from big_align.errors import UserError


def check_picture(path: str) -> None:
    """Checks, before there is a picture, that one can be written to a path; makes its folder.

    Args:
      path: the file to write.

    Raises:
      UserError: its name does not end in a format of pictures, or its folder cannot be made.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    target = pathlib.Path(path)
    known = FigureCanvasBase.get_supported_filetypes()
    if target.suffix.removeprefix(".").lower() not in known:
        raise UserError(f"--output={path} must end in a format of pictures: .png, .pdf or .svg")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output={path}: {error}") from error
