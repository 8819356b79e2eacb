"""What may be given to a step, by name: checked against its signature, cut, padded with dead rows.

Knows arrays and their declared types; runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cugraphs.counted import counted
from cugraphs.device import Device
from cugraphs.given_arrays import check_shape, checked, lossless
from cugraphs.kernel import DTYPES, Array, ArrayType
from cugraphs.step_signature import StepSignature, row_offset


class StepArguments:
    """Turns what callers give into arrays that fit, and fills a step's inputs with them."""

    def __init__(
        self,
        signature: StepSignature,
        device: Device,
        *,
        max_rows: int,
        dead: Mapping[str, Any],
        allow_rounding: bool,
    ) -> None:
        """Check what dead rows hold.

        Args:
            signature: of the step.
            device: its own arrays are taken as they stand.
            max_rows: of a batch.
            dead: a number or a row for inputs that have rows; others hold 0.
            allow_rounding: round floats to the declared dtype.

        Raises:
            TypeError, ValueError: a value does not fit its input, or no input with rows has the
                name.
        """
        self._signature = signature
        self._who = signature.name
        self._device = device
        self._max_rows = max_rows
        self._rounding = allow_rounding
        with_rows = {n: t for n, t in signature.inputs.items() if row_offset(t) is not None}
        for name in dead:
            if name not in with_rows:
                raise ValueError(
                    f"{self._who}: dead has {name!r}, expected inputs with rows: "
                    f"{', '.join(with_rows)}"
                )
        self._dead = {n: self._dead_row(n, t, dead.get(n, 0)) for n, t in with_rows.items()}

    def batch(self, given: Mapping[str, Any]) -> tuple[int, dict[str, Array]]:
        """The rows of a batch, and an array for every input.

        Raises:
            TypeError: an input is missing or unknown, or its dtype cannot be converted.
            ValueError: a shape does not fit, or the batch is too large.
        """
        inputs = self._signature.inputs
        self._check_names("input", inputs, given)
        arrays = {n: a if self.on_device(a) else np.asarray(a) for n, a in given.items()}
        rows = self._rows_of(arrays)
        types = {name: _with_rows(type_, rows) for name, type_ in inputs.items()}
        return rows, {n: self.fitting(f"input {n!r}", arrays[n], t) for n, t in types.items()}

    def weights(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """An array for every weight; more may be given. Raises as :meth:`batch`."""
        types = self._signature.weights
        self._check_names("weight", types, {n: a for n, a in given.items() if n in types})
        return {n: self.fitting(f"weight {n!r}", given[n], t) for n, t in types.items()}

    def state(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """An array for every state. Raises as :meth:`batch`."""
        types = self._signature.state
        self._check_names("state", types, given)
        return {n: self.fitting(f"state {n!r}", given[n], t) for n, t in types.items()}

    def fitting(self, what: str, values: Any, type_: ArrayType) -> Array:  # noqa: ANN401
        """An array of the type: the device's own as it stands, any other as a host array.

        Raises:
            TypeError, ValueError: it is none.
        """
        who = f"{self._who}: {what}"
        if not self.on_device(values):
            return checked(who, values, type_, allow_rounding=self._rounding)
        array: Array = values
        check_shape(who, array, type_)
        if array.dtype != DTYPES[type_.dtype] or not array.flags.c_contiguous:
            raise TypeError(
                f"{who} is {array.dtype} with strides {list(array.strides)} on the device, "
                f"expected contiguous {type_.dtype}: there it is taken as it stands"
            )
        return array

    def on_device(self, array: object) -> bool:
        """Whether it is an array in the memory of a device that is not the host."""
        return not self._device.shares_host_memory and self._device.owns(array)

    def fill(self, inputs: Mapping[str, Array], given: Mapping[str, Array], rows: int) -> None:
        """Write the inputs of a step.

        Args:
            inputs: host arrays of a bucket.
            given: host arrays of a batch; what is missing comes from elsewhere.
            rows: of the batch; the rows after them are dead, and with 0 all are.
        """
        for name, type_ in self._signature.inputs.items():
            offset = row_offset(type_)
            if offset is None:
                inputs[name][...] = given.get(name, 0)
                continue
            live = rows + offset if rows else 0
            inputs[name][live:] = self._dead[name]
            if name in given:
                inputs[name][:live] = given[name]

    def cut(self, given: Mapping[str, Array], begin: int, count: int) -> dict[str, Array]:
        """Some rows of a batch, with all of what has no rows."""
        inputs = self._signature.inputs
        return {
            name: array if row_offset(inputs[name]) is None else array[begin : begin + count]
            for name, array in given.items()
        }

    def _rows_of(self, arrays: Mapping[str, Array]) -> int:
        """What the first input with rows has; all others are checked against it."""
        name, offset = next(
            (name, offset)
            for name, type_ in self._signature.inputs.items()
            if (offset := row_offset(type_)) is not None
        )
        shape = arrays[name].shape
        rows = int(shape[0]) - offset if shape else 0
        if not 1 <= rows <= self._max_rows:
            raise ValueError(
                f"{self._who}: input {name!r} is {arrays[name].dtype}{list(shape)}, expected "
                f"{self._signature.inputs[name]} with 1 to {counted(self._max_rows, 'row')}; for "
                "more, compile it with larger buckets or max_rows"
            )
        return rows

    def _dead_row(self, name: str, type_: ArrayType, value: Any) -> Array:  # noqa: ANN401
        who = f"{self._who}: dead {name!r}"
        array = lossless(who, np.asarray(value), type_.dtype, allow_rounding=self._rounding)
        if array.ndim:
            check_shape(who, array, ArrayType(type_.shape[1:], type_.dtype))
        return array

    def _check_names(
        self, kind: str, types: Mapping[str, ArrayType], given: Mapping[str, Any]
    ) -> None:
        for name, type_ in types.items():
            if name not in given:
                raise TypeError(
                    f"{self._who}: no array is given for {kind} {name!r}, expected {type_}"
                )
        for name in given:
            if name not in types:
                raise TypeError(
                    f"{self._who}: {kind} {name!r} is given, expected {', '.join(types) or 'none'}"
                )


def _with_rows(type_: ArrayType, rows: int) -> ArrayType:
    """The type with its axis of rows, if it has one, at a batch's size."""
    offset = row_offset(type_)
    return type_ if offset is None else ArrayType((rows + offset, *type_.shape[1:]), type_.dtype)
