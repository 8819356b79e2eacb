"""Time cuBLASLt's algorithms for a model's matrix products on this GPU, and keep the fastest.

Every later start on this GPU takes them from the table that is written; none times anything itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cugraphs.checkpoint import Checkpoint
from cugraphs.cli.tables import TableConsole
from cugraphs.counted import counted
from cugraphs.cuda_device import CudaDevice
from cugraphs.kernel import MatrixProduct, running_on
from cugraphs.kernel_speed import three_digits
from cugraphs.kernels import LINEAR
from cugraphs.model_lookup import find_model
from cugraphs.model_shapes import MODEL_SHAPES, model_shape
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.weights import EMBEDDING_WEIGHT, HEAD_WEIGHT, weight_table
from cugraphs.product_timing import ProductTimer
from cugraphs.tuning_table import (
    ROW_CLASSES,
    Choice,
    Product,
    TuningTable,
    check_writable,
    own_table_path,
    read_table,
    row_class,
    version_text,
    write_table,
)

if TYPE_CHECKING:
    from argparse import _SubParsersAction

# Logits are computed for rows that are sampled, so that the head never sees a whole long prompt.
HEAD_MAX_ROWS = 1024

_Choices = dict[tuple[Product, int], Choice]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "tune", help="choose matrix products' algorithms for this GPU", description=__doc__
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help='a folder, "demo", or a Hub id such as org/name'
    )
    parser.add_argument(
        "--shape",
        action="append",
        metavar="NAME",
        help=f"a published shape, without a checkpoint; may be repeated: {', '.join(MODEL_SHAPES)}",
    )
    parser.add_argument(
        "--rows",
        type=int,
        action="append",
        metavar="N",
        help="only the class that holds so many rows; may be repeated (default: every class up to "
        f"{ROW_CLASSES[-1]:,} that cuBLASLt computes)",
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "float16", "bfloat16"),
        help="of weights and activations (default: the checkpoint's own)",
    )
    parser.add_argument(
        "--allow-tf32", action="store_true", help="tune float32 products that round to TF32"
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help="time only what the table does not hold yet: go on after an interrupt",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the table to write or add to (default: your own for this GPU, in the cache folder)",
    )
    parser.add_argument(
        "--traceback", action="store_true", help="show the Python traceback of an error"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, write the table, and print what was found; an interrupt keeps what there is."""
    products = _products(args)
    plan = _plan(products, args.rows)
    device = CudaDevice(allow_tf32=args.allow_tf32)
    path = args.output or own_table_path(device.gpu_name)
    table = _existing(path, device)
    check_writable(path)
    if args.missing:
        plan = {
            product: tuple(rows for rows in classes if (product, rows) not in table.choices)
            for product, classes in plan.items()
        }
    choices: _Choices = {}
    try:
        _measure(device, plan, choices)
    finally:
        if choices:
            write_table(path, table.updated(choices))
            _print(products, choices)
        print(
            f"{len(choices)} of {sum(map(len, plan.values()))} written to {path}: "
            f"{device.gpu_name}, cuBLASLt {version_text(device.cublaslt.version)}"
        )
    return 0


def _products(args: argparse.Namespace) -> dict[Product, str]:
    """The different matrix products of all models that are named, each with where it occurs."""
    if args.model is None and not args.shape:
        raise ValueError("tune: neither MODEL nor --shape is given, expected one of them")
    configs = []
    if args.model is not None:
        folder = find_model(args.model)
        with Checkpoint.open(folder) as checkpoint:
            configs.append(LlamaConfig.from_hf(checkpoint.config, str(folder / "config.json")))
    for name in args.shape or ():
        configs.append(LlamaConfig.from_hf(model_shape(name), name))
    names: dict[Product, list[str]] = {}
    for config in configs:
        dtype = config.dtype if args.dtype == "auto" else args.dtype
        if args.allow_tf32 and dtype != "float32":
            raise ValueError(
                f"tune: --allow-tf32 is given and the dtype is {dtype}, expected float32; give "
                "--dtype float32, or leave it out"
            )
        for name, product in products_of(config, "tf32" if args.allow_tf32 else dtype).items():
            known = names.setdefault(product, [])
            if name not in known:
                known.append(name)
    return {product: ", ".join(where) for product, where in names.items()}


def products_of(config: LlamaConfig, dtype: str) -> dict[str, Product]:
    """A model's matrix products by name: those of one layer, which stand for all, and the head."""
    weights = weight_table(config)
    found = {}
    for name, weight in weights.items():
        is_head = name == (EMBEDDING_WEIGHT if config.tie_word_embeddings else HEAD_WEIGHT)
        if (name.startswith("model.layers.0.") and name.endswith("_proj.weight")) or is_head:
            short = "lm_head" if is_head else name.split(".")[-2]
            has_bias = name.removesuffix(".weight") + ".bias" in weights
            out_features, in_features = weight.shape
            found[short] = Product(dtype, out_features, in_features, has_bias)
    return found


def _plan(
    products: Mapping[Product, str], rows: Sequence[int] | None
) -> dict[Product, tuple[int, ...]]:
    """The row classes at which each product is timed, ascending.

    Raises:
        ValueError: a number of rows that no class holds.
    """
    for count in rows or ():
        if count < 1 or row_class(count) is None:
            raise ValueError(f"tune: --rows is {count}, expected 1 to {ROW_CLASSES[-1]}")
    asked = None if rows is None else sorted({row_class(count) or count for count in rows})
    plan = {}
    for product, where in products.items():
        most = HEAD_MAX_ROWS if where == "lm_head" else ROW_CLASSES[-1]
        classes = asked or [each for each in ROW_CLASSES if _is_cublaslt(product, each)]
        plan[product] = tuple(each for each in classes if each <= most)
    return plan


def _is_cublaslt(product: Product, rows: int) -> bool:
    """Whether the kernel leaves these rows to cuBLASLt, on some architecture."""
    assert LINEAR.launches is not None, "linear has a CUDA form"
    axes = {
        "tokens": rows,
        "out_features": product.out_features,
        "in_features": product.in_features,
    }
    dtype = "float32" if product.dtype == "tf32" else product.dtype
    parts = running_on("", LINEAR.launches(axes, dtype))
    return any(isinstance(part, MatrixProduct) for part in parts)


def _existing(path: Path, device: CudaDevice) -> TuningTable:
    """The table that is added to: the file's, if it is for this GPU and library."""
    version = device.cublaslt.version
    if path.exists():
        table = read_table(path)
        if table.fits(device.gpu_name, version):
            return table
        print(
            f"cugraphs: {path} is for {table.card}, cuBLASLt {version_text(table.cublaslt)}, and "
            "will be replaced",
            file=sys.stderr,
        )
    return TuningTable(device.gpu_name, version)


def _measure(device: CudaDevice, plan: Mapping[Product, Sequence[int]], choices: _Choices) -> None:
    """Fill ``choices``, with a progress bar on stderr that shows only on a terminal."""
    console = Console(file=sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=sum(map(len, plan.values())))
        for product, classes in plan.items():
            if not classes:
                continue
            timer = ProductTimer(device, product, max(classes))
            for rows in classes:
                size = f"{product.out_features} x {product.in_features}"
                bar.update(task, description=f"{size}, {counted(rows, 'row')}")
                choices[product, rows] = timer.tune(rows)
                bar.advance(task)


def _print(products: Mapping[Product, str], choices: _Choices) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("product", "out x in", "dtype"):
        table.add_column(column, no_wrap=True)
    for column in ("rows", "first us", "best us", "gain", "TB/s", "TFLOP/s"):
        table.add_column(column, no_wrap=True, justify="right")
    for (product, rows), choice in choices.items():
        sizes = {
            "tokens": rows,
            "out_features": product.out_features,
            "in_features": product.in_features,
        }
        cost = LINEAR.cost(sizes, "float32" if product.dtype == "tf32" else product.dtype)
        table.add_row(
            products[product],
            f"{product.out_features} x {product.in_features}",
            product.dtype,
            f"{rows}",
            three_digits(choice.first_us),
            three_digits(choice.us),
            f"{choice.first_us / choice.us - 1:.1%}" if choice.algorithm else "",
            f"{cost.bytes_accessed / choice.us / 1e6:.2f}",
            three_digits(cost.flops / choice.us / 1e6),
        )
    TableConsole().print(table)
