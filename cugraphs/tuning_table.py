"""Which algorithm of cuBLASLt multiplies a shape fastest on a card: what `cugraphs tune` measured.

One JSON file per card: those of ``cugraphs/tuning`` ship with the package, the user's own lies in
the cache folder and goes before. An algorithm means something only to the version of the library
that it was measured with. Knows files and keys; times nothing, and asks no library.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cugraphs.build_cache import cache_folder
from cugraphs.one_line import one_line, reason

# A product is looked up by the smallest of these that holds its rows. They are what steps run at:
# powers of two and the rungs between them, and above those coarser, since a prompt has any length.
ROW_CLASSES = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256),
    *(384, 512, 768, 1024, 2048, 4096, 8192),
)
ALGORITHM_BYTES = 64  # of cublasLtMatmulAlgo_t
DTYPES = ("float32", "tf32", "float16", "bfloat16")  # tf32: float32 operands, rounded to TF32
SHIPPED = Path(__file__).with_name("tuning")
_FORMAT = 1
_log = logging.getLogger("cugraphs")


def row_class(rows: int) -> int | None:
    """The row class that holds ``rows``; None above the largest."""
    index = bisect_left(ROW_CLASSES, rows)
    return ROW_CLASSES[index] if index < len(ROW_CLASSES) else None


@dataclass(frozen=True, order=True)
class Product:
    """``out [rows, out_features] = x [rows, in_features] @ weight.T (+ bias)``, for any rows."""

    dtype: str
    out_features: int
    in_features: int
    has_bias: bool = False

    def __post_init__(self) -> None:
        """Refuse what no product is."""
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}, expected one of {', '.join(DTYPES)}")
        for name in ("out_features", "in_features"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}, expected a positive integer")
        if type(self.has_bias) is not bool:
            raise ValueError(f"bias is {self.has_bias!r}, expected true or false")


@dataclass(frozen=True)
class Choice:
    """What was measured fastest.

    Args:
        algorithm: the bytes of cublasLtMatmulAlgo_t; None where the library's first heuristic is.
        workspace_bytes: scratch memory that it needs.
        us: its time with the weight cold.
        first_us: that of the first heuristic.
    """

    algorithm: bytes | None
    workspace_bytes: int
    us: float
    first_us: float

    def __post_init__(self) -> None:
        """Refuse what no measurement gives."""
        if self.algorithm is not None and len(self.algorithm) != ALGORITHM_BYTES:
            raise ValueError(
                f"algorithm has {len(self.algorithm)} bytes, expected {ALGORITHM_BYTES}"
            )
        if type(self.workspace_bytes) is not int or self.workspace_bytes < 0:
            raise ValueError(f"workspace_bytes is {self.workspace_bytes!r}, expected 0 or more")
        for name in ("us", "first_us"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value!r}, expected a positive number")


@dataclass(frozen=True)
class TuningTable:
    """Choices for one card and one version of cuBLASLt, by product and row class."""

    card: str
    cublaslt: int
    choices: Mapping[tuple[Product, int], Choice] = field(default_factory=dict)

    def find(self, product: Product, rows: int) -> Choice | None:
        """The choice for the row class that holds ``rows``, if it was measured."""
        rows_of_class = row_class(rows)
        return None if rows_of_class is None else self.choices.get((product, rows_of_class))

    def updated(self, newer: Mapping[tuple[Product, int], Choice]) -> TuningTable:
        """The same with the choices of ``newer`` added or in place of older ones."""
        return TuningTable(self.card, self.cublaslt, {**self.choices, **newer})

    def fits(self, card: str, cublaslt: int) -> bool:
        """Whether it was measured on such a card with this version."""
        return (self.card, self.cublaslt) == (card, cublaslt)


def table_name(card: str) -> str:
    """The file name of a card's table: ``nvidia_h200.json`` for "NVIDIA H200"."""
    return re.sub(r"[^a-z0-9]+", "_", card.lower()).strip("_") + ".json"


def own_table_path(card: str) -> Path:
    """Where the user's own table for a card lies."""
    return cache_folder("tuning") / table_name(card)


def version_text(cublaslt: int) -> str:
    """``13.1.0`` for 130100, as cublasLtGetVersion counts."""
    return f"{cublaslt // 10000}.{cublaslt // 100 % 100}.{cublaslt % 100}"


def load_table(card: str, cublaslt: int, path: Path | None = None) -> TuningTable:
    """What is known for a card and a version of cuBLASLt; empty where nothing is.

    A table of another card or version is left out, and one notice says so.

    Args:
        card: the GPU's name.
        cublaslt: what cublasLtGetVersion returns.
        path: use this table alone, instead of the shipped one and the user's.

    Raises:
        ValueError: a file cannot be read, or is no tuning table.
    """
    if path is not None:
        paths = [path]
    else:
        candidates = (SHIPPED / table_name(card), own_table_path(card))
        paths = [candidate for candidate in candidates if candidate.exists()]
    tables = {each: read_table(each) for each in paths}
    result = TuningTable(card, cublaslt)
    unfit = []
    for each, table in tables.items():
        if table.fits(card, cublaslt):
            result = result.updated(table.choices)
        else:
            unfit.append(f"{each} is for {table.card}, cuBLASLt {version_text(table.cublaslt)}")
    if not result.choices:
        _log.info(
            "matrix products are not tuned for %s, cuBLASLt %s (%s): run `cugraphs tune MODEL`",
            card,
            version_text(cublaslt),
            "; ".join(unfit) or "no table",
        )
    return result


def read_table(path: Path) -> TuningTable:
    """A table from its file.

    Raises:
        ValueError: it cannot be read, or is not what ``write_table`` writes.
    """
    try:
        return _table(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        says = f"{error} is missing" if isinstance(error, KeyError) else reason(error)
        raise ValueError(
            f"{one_line(path, 1000)}: is no tuning table ({says}), expected what `cugraphs tune` "
            "writes; delete it, or name another"
        ) from None


def write_table(path: Path, table: TuningTable) -> None:
    """Write a table, one choice a line; others see the file whole or not at all.

    Raises:
        OSError: it cannot be written; the message says what to change.
    """
    head = {"format": _FORMAT, "card": table.card, "cublaslt": table.cublaslt}
    lines = [
        json.dumps(_as_json(product, rows, table.choices[product, rows]))
        for product, rows in sorted(table.choices)
    ]
    text = json.dumps(head)[:-1] + ', "products": [\n' + ",\n".join(lines) + "\n]}\n"
    with _beside(path) as temporary:
        temporary.write_text(text)
        os.replace(temporary, path)


def check_writable(path: Path) -> None:
    """Refuse a table's file that could not be written, before anything is measured.

    Raises:
        OSError: it cannot; the message says what to change.
    """
    with _beside(path) as temporary:
        temporary.touch()


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A name for a temporary file in a table's folder, which is made; nothing of it is left."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
    except OSError as error:
        raise OSError(
            f"{one_line(path, 1000)}: cannot be written ({reason(error)}), expected a file in a "
            "folder of yours; give another --output"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _as_json(product: Product, rows: int, choice: Choice) -> dict[str, Any]:
    return {
        "dtype": product.dtype,
        "out_features": product.out_features,
        "in_features": product.in_features,
        "bias": product.has_bias,
        "rows": rows,
        "algorithm": None if choice.algorithm is None else choice.algorithm.hex(),
        "workspace_bytes": choice.workspace_bytes,
        "us": round(choice.us, 3),
        "first_us": round(choice.first_us, 3),
    }


def _table(value: Any) -> TuningTable:  # noqa: ANN401 - anything that JSON can hold
    if value["format"] != _FORMAT:
        raise ValueError(f"format is {value['format']!r}, expected {_FORMAT}")
    card, cublaslt = value["card"], value["cublaslt"]
    if type(card) is not str or type(cublaslt) is not int:
        raise TypeError("card or cublaslt is not a name or a number")
    choices = {}
    for entry in value["products"]:
        if entry["rows"] not in ROW_CLASSES:
            raise ValueError(f"rows is {entry['rows']!r}, expected one of {ROW_CLASSES}")
        sizes = (entry["out_features"], entry["in_features"])
        product = Product(entry["dtype"], *sizes, entry["bias"])
        text = entry["algorithm"]
        algorithm = None if text is None else bytes.fromhex(text)
        times = (entry["us"], entry["first_us"])
        choices[product, entry["rows"]] = Choice(algorithm, entry["workspace_bytes"], *times)
    return TuningTable(card, cublaslt, choices)
