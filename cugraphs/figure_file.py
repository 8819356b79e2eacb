"""Pictures into files with matplotlib, which the extra ``plot`` installs. No window, no state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
INK, GRID = "#22303a", "#d8dde1"


def check_figure_file(file: Path) -> None:
    """Raise where :func:`save_figure` would: before the work that the picture shows.

    Raises:
        RuntimeError: matplotlib is not installed.
        ValueError: the file's name ends in none of the known formats, or its folder is missing.
    """
    if file.suffix.lower() not in FORMATS:
        raise ValueError(f"plot: {file} ends in {file.suffix!r}, expected {', '.join(FORMATS)}")
    if not file.resolve().parent.is_dir():
        raise ValueError(f"plot: {file.parent} is no folder, expected one to write {file.name} to")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise RuntimeError(
            "plot: matplotlib is not installed, expected it for pictures; "
            "pip install 'cugraphs[plot]'"
        ) from None


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """An empty figure whose parts arrange themselves."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def save_figure(figure: Figure, file: Path) -> None:
    """Write the figure in the format that the file's name ends in."""
    check_figure_file(file)
    figure.savefig(file, dpi=130)
