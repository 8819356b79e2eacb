"""One safetensors file: its validated header, and each tensor as a typed, zero-copy byte view.

The `safetensors` library opens and validates the file; the bytes are views of this module's own
memory map, because the library's NumPy side cannot give BF16 or FP8. Whoever wants many bytes reads
them instead: a file that shrinks is then an error, where a memory map ends the process.

Knows the format only (https://github.com/huggingface/safetensors): no folder, no name of a tensor.
"""

from __future__ import annotations

import math
import mmap
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from cugraphs.counted import counted
from cugraphs.model_file import ModelFileError, open_file, refusal
from cugraphs.one_line import one_line, quoted, reason

# What safetensors calls a dtype, what we (and NumPy, torch) call it, and how `array` shows it.
# FP8 has no arithmetic here, so it stays raw bytes. No Llama has the others that the format knows
# (less than a byte, complex, AMD's FP8).
_DTYPES: dict[str, tuple[str, np.dtype[Any]]] = {
    "BOOL": ("bool", np.dtype(np.bool_)),
    "U8": ("uint8", np.dtype(np.uint8)),
    "I8": ("int8", np.dtype(np.int8)),
    "U16": ("uint16", np.dtype(np.uint16)),
    "I16": ("int16", np.dtype(np.int16)),
    "U32": ("uint32", np.dtype(np.uint32)),
    "I32": ("int32", np.dtype(np.int32)),
    "U64": ("uint64", np.dtype(np.uint64)),
    "I64": ("int64", np.dtype(np.int64)),
    "F16": ("float16", np.dtype(np.float16)),
    "BF16": ("bfloat16", np.dtype(ml_dtypes.bfloat16)),
    "F32": ("float32", np.dtype(np.float32)),
    "F64": ("float64", np.dtype(np.float64)),
    "F8_E4M3": ("float8_e4m3fn", np.dtype(np.uint8)),
    "F8_E5M2": ("float8_e5m2", np.dtype(np.uint8)),
    "F8_E8M0": ("float8_e8m0fnu", np.dtype(np.uint8)),
}
_ARRAY_DTYPES: dict[str, np.dtype[Any]] = dict(_DTYPES.values())

_MAX_DIMENSIONS = 64  # NumPy's own limit


@dataclass(frozen=True, eq=False, slots=True)
class TensorView:
    """One tensor of a checkpoint: its name, type, shape and bytes, which are never copied.

    Args:
        name: Name in the file, e.g. ``model.norm.weight``.
        dtype: ``float32``, ``bfloat16``, ``float8_e4m3fn`` and so on.
        shape: As in the file; ``()`` for a scalar.
        file: The file that holds the bytes.
        data: uint8 [nbytes], read-only view of the mapped file, at any alignment.
        reader: Of the open file; None reads from ``data``.
        start: Where in the file the bytes begin.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    data: npt.NDArray[np.uint8] = field(repr=False)
    reader: FileReader | None = field(default=None, repr=False)
    start: int = 0

    def __post_init__(self) -> None:
        """Refuse bytes that do not fit dtype and shape."""
        if self.dtype not in _ARRAY_DTYPES:
            known = ", ".join(_ARRAY_DTYPES)
            raise ValueError(
                f"TensorView {self.name!r}: dtype is {self.dtype!r}, expected one of {known}"
            )
        expected_bytes = math.prod(self.shape) * _ARRAY_DTYPES[self.dtype].itemsize
        if self.data.dtype != np.uint8 or self.data.shape != (expected_bytes,):
            raise ValueError(
                f"TensorView {self.name!r}: data is {self.data.dtype} {list(self.data.shape)}, "
                f"expected uint8 [{expected_bytes}] for {self.dtype} {list(self.shape)}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file."""
        return self.data.nbytes

    def array(self) -> npt.NDArray[Any]:
        """The tensor as a read-only array over the same bytes; FP8 stays uint8 of the same shape.

        The bytes may begin at any address: NumPy reads such an array, code that takes its pointer
        must look at ``flags.aligned``.
        """
        return self.data.view(_ARRAY_DTYPES[self.dtype]).reshape(self.shape)

    def read(self, begin: int, buffer: npt.NDArray[np.uint8]) -> None:
        """Fill ``buffer`` with the tensor's bytes from ``begin`` on; any thread may call it.

        Raises:
            ModelFileError: The file has become shorter, or cannot be read.
        """
        if self.reader is None:
            buffer[:] = self.data[begin : begin + buffer.nbytes]
        else:
            self.reader.read(self.start + begin, buffer)

    def check_unchanged(self) -> None:
        """Raise ModelFileError if the file has been written to since it was opened."""
        if self.reader is not None:
            self.reader.check_unchanged()


class FileReader:
    """An open file, read at given places. It is closed when the last view of it is gone."""

    def __init__(self, header: FileHeader, descriptor: int) -> None:
        """Take an open file.

        Args:
            header: what it held when it was checked.
            descriptor: of the file; closed by this object.
        """
        self._header = header
        self._descriptor = descriptor
        self._modified_ns = os.fstat(descriptor).st_mtime_ns

    def read(self, start: int, buffer: npt.NDArray[np.uint8]) -> None:
        """Fill ``buffer`` with the file's bytes from ``start`` on.

        Raises:
            ModelFileError: The file ends before, or cannot be read.
        """
        view = buffer.data
        while view:
            try:
                count = os.preadv(self._descriptor, [view], start)
            except OSError as error:
                raise refusal(
                    self._header.path,
                    f"cannot be read at byte {start} ({reason(error)})",
                    "a file that can be",
                    "check the disk or the network, or copy the folder to a local disk",
                ) from error
            if count == 0:
                raise self._changed()
            start, view = start + count, view[count:]

    def check_unchanged(self) -> None:
        """Raise ModelFileError if the file has been written to since it was opened."""
        now = os.fstat(self._descriptor)
        if now.st_size != self._header.file_bytes or now.st_mtime_ns != self._modified_ns:
            raise self._changed()

    def _changed(self) -> ModelFileError:
        file_bytes = os.fstat(self._descriptor).st_size
        return _changed(self._header.path, self._header.file_bytes, file_bytes)

    def close(self) -> None:
        """Close the file at once; nothing can be read then."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        """Close the file."""
        self.close()


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a header; `start` counts bytes from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class FileHeader:
    """What one file holds, in the order of its bytes."""

    path: Path
    file_bytes: int
    entries: tuple[TensorEntry, ...]


def read_header(path: Path) -> FileHeader:
    """Names, dtypes, shapes and places of a file's tensors, validated; leaves nothing open.

    Raises:
        ModelFileError: Not a whole safetensors file, or a tensor that this module cannot give.
    """
    with open_file(path) as file:
        file_bytes = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
    wanted = "a whole safetensors file"
    advice = "download or convert it again"
    if file_bytes < 8:
        raise refusal(path, f"is {counted(file_bytes, 'byte')}", wanted, advice)
    try:
        with safe_open(path, framework="np") as opened:
            slices = ((name, opened.get_slice(name)) for name in opened.offset_keys())
            listed = [(name, s.get_dtype(), tuple(s.get_shape())) for name, s in slices]
    except (SafetensorError, OSError) as error:
        raise refusal(
            path,
            f"({counted(file_bytes, 'byte')}) is damaged or cut short: {reason(error)}",
            wanted,
            advice,
        ) from error
    # The library has checked that the tensors follow the header, and each other, without gaps.
    offset = 8 + int.from_bytes(prefix, "little")
    entries = []
    for name, stored_dtype, shape in listed:
        if stored_dtype not in _DTYPES:
            raise refusal(
                path,
                f"holds tensor {quoted(name)} of dtype {stored_dtype}",
                f"one of {', '.join(_DTYPES)}",
                "take a checkpoint in one of these",
            )
        dtype, array_dtype = _DTYPES[stored_dtype]
        # Only an empty tensor can claim more than the file holds, and NumPy would refuse it.
        claimed_bytes = math.prod(size for size in shape if size) * array_dtype.itemsize
        if len(shape) > _MAX_DIMENSIONS or claimed_bytes >= 2**63:
            raise refusal(
                path,
                f"holds tensor {quoted(name)} of shape {one_line(list(shape))}",
                f"at most {_MAX_DIMENSIONS} dimensions of less than 2**63 bytes",
                advice,
            )
        nbytes = math.prod(shape) * array_dtype.itemsize
        entries.append(TensorEntry(name, dtype, shape, offset, nbytes))
        offset += nbytes
    if offset != file_bytes:
        raise _changed(path, file_bytes, offset)
    if not entries:
        raise refusal(path, "holds no tensors", "at least one", advice)
    return FileHeader(path, file_bytes, tuple(entries))


def map_file(header: FileHeader) -> tuple[mmap.mmap, FileReader]:
    """Map the file of a header into memory, read-only; the caller closes the map.

    Returns:
        The map, and a reader of the same open file.

    Raises:
        ModelFileError: The file cannot be mapped, or has changed its size since.
    """
    with open_file(header.path) as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise refusal(
                header.path,
                f"cannot be mapped ({reason(error)})",
                "a file that can be",
                "copy the folder to a local disk",
            ) from error
        with ExitStack() as stack:
            stack.enter_context(mapped)
            if len(mapped) != header.file_bytes:
                raise _changed(header.path, header.file_bytes, len(mapped))
            reader = FileReader(header, os.dup(file.fileno()))
            stack.pop_all()
    return mapped, reader


def view_tensors(
    header: FileHeader, mapped: mmap.mmap, reader: FileReader
) -> dict[str, TensorView]:
    """Every tensor of a mapped file by name; the map lives as long as one of the views."""
    file_data = np.frombuffer(mapped, np.uint8)
    return {
        entry.name: TensorView(
            entry.name,
            entry.dtype,
            entry.shape,
            header.path,
            file_data[entry.start : entry.start + entry.nbytes],
            reader,
            entry.start,
        )
        for entry in header.entries
    }


def _changed(path: Path, before_bytes: int, after_bytes: int) -> ModelFileError:
    found = f"changed from {before_bytes} to {after_bytes} bytes while being read"
    if before_bytes == after_bytes:
        found = "was written to while being read"
    return refusal(path, found, "a file at rest", "wait until it is written")
