"""How the subcommands print tables and quantities."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

_WIDTH = 160  # characters: a table that is cut or folded to the terminal is of no use in a file


class TableConsole(Console):
    """Prints tables as wide as they are, and leaves a broken pipe to the command."""

    def __init__(self) -> None:
        """On stdout, without colours for numbers."""
        super().__init__(highlight=False)
        self.width = max(self.width, _WIDTH)

    def on_broken_pipe(self) -> None:
        """The command ends with one exit code for it, whatever printed."""
        raise BrokenPipeError


def new_table(title: str, first: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are figures; no cell is wrapped."""
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def gigabytes(nbytes: float) -> str:
    """``16.06 GB``, decimal."""
    return f"{nbytes / 1e9:,.2f} GB"


def megabytes(nbytes: float) -> str:
    """``64.0 MiB``."""
    return f"{nbytes / (1 << 20):,.1f} MiB"


def milliseconds(ms: float) -> str:
    """``4.794 ms``."""
    return f"{ms:,.3f} ms"
