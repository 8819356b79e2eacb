"""The model folder of a benchmark that reads one: the user's own, or one of random weights."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cugraphs.model_lookup import find_model
from cugraphs.model_shapes import model_shape
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.weights import checkpoint_shapes
from cugraphs.random_checkpoint import write_random_checkpoint


def add_folder_option(parser: argparse.ArgumentParser) -> None:
    """Add where a random checkpoint is made."""
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        help="with --shape: make the checkpoint there and keep it, or take it if it is there; "
        "default a temporary folder (in $TMPDIR), which is removed",
    )


@contextmanager
def checkpoint_folder(
    args: argparse.Namespace, check_device: Callable[[], object] | None
) -> Iterator[tuple[str, Path, str]]:
    """The model's name, its folder and what its weights are, for as long as the context.

    Args:
        args: with the options of :func:`add_folder_option`.
        check_device: raises where the benchmark could not run, before gigabytes are read or
            written.

    Raises:
        ValueError, OSError: the model cannot be found or made.
    """
    if args.shape is None:
        if args.folder is not None:
            raise ValueError("bench: --folder is given with a model, expected --shape with it")
        folder = find_model(args.model, allow_download=False)
        if check_device is not None:
            check_device()
        yield args.model, folder, "weights of a checkpoint"
        return
    config = model_shape(args.shape)
    shapes = checkpoint_shapes(LlamaConfig.from_hf(config, args.shape))
    if check_device is not None:
        check_device()
    with tempfile.TemporaryDirectory(prefix="cugraphs-bench-") as temporary:
        folder = args.folder or Path(temporary) / args.shape
        print(f"bench: a checkpoint of random weights in {folder}", file=sys.stderr)
        write_random_checkpoint(folder, config, shapes, dtype=args.dtype)
        yield args.shape, folder, "random weights"
