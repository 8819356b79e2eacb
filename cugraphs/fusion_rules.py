"""Which runs of ops become one kernel, as data. The model stays in plain ops.

Where two rules hold, the first one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cugraphs import meeting_places
from cugraphs.counted import counted
from cugraphs.kernel import Axes, Kernel
from cugraphs.kernels import (
    ADD,
    ADD_RMS_NORM,
    APPLY_CHANGES,
    ATTENTION_PARTS,
    BEGIN_ROWS,
    DECODE_LAYER,
    DECODE_ROWS,
    EMBEDDING,
    LINEAR,
    LINEAR_ADD,
    LINEAR_ADD_RMS_NORM,
    LINEAR_RESIDUAL,
    LINEAR_ROPE_APPEND,
    LINEAR_SWIGLU,
    NORM_LINEAR,
    NORM_ROPE_APPEND,
    NORM_SWIGLU,
    PAGED_DECODE_ATTENTION,
    RMS_NORM,
    ROPE_APPEND,
    ROPE_APPEND_ATTENTION,
    SILU_AND_MUL,
)
from cugraphs.kernels.decode_layer import LayerSizes, is_worth_one_launch
from cugraphs.kernels.held_rows import HeldShape
from cugraphs.kernels.linear_residual import MIN_ROWS
from cugraphs.kernels.product_forms import own_form
from cugraphs.kernels.rope_append_attention import WORTH_ROWS
from cugraphs.kernels.stream_linear import MAX_ADD_ROWS

# In ``Rule.operands``: the places in which blocks of the fused launch meet, its own and the next's.
HERE, NEXT_PLACE = (-1, meeting_places.HERE), (-1, meeting_places.NEXT_PLACE)


@dataclass(frozen=True)
class Rule:
    """Replace a run of consecutive ops by one launch of ``fused``.

    Args:
        run: the kernels of the run, in order.
        fused: the kernel that does the work of all of them.
        operands: for each operand of ``fused``, (index in the run, operand name) of its buffer;
            :data:`HERE` and :data:`NEXT_PLACE` for places, which the program gets for it.
        links: pairs of operands that must be the same buffer, as (index, name), (index, name).
        requires: scalars of the run that must have these values, and that ``fused`` does not take.
        dtypes: that "T" may be; empty: any.
        min_rows: tokens, at their most, from which on it is worth it.
        max_rows: tokens, at their most, to which it is worth it; 0: whatever ``fused`` takes.
        worth: says whether it is worth it for the axes of ``fused``, and of the run's first LINEAR,
            at their largest; None: always.
        place_words: of a place, for the axes of the other operands of ``fused``; None: it has none.
            It is fused only where there are at least three such runs, which take turns.

    A run is left alone unless it is linked so, every buffer of it is an operand of the fused launch
    or a temporary that lives only inside the run, and ``fused`` takes its sizes at their largest,
    at one row and where kernels of other forms begin, since a program is bound at any: a kernel
    that is for few rows refuses more.
    """

    run: tuple[Kernel, ...]
    fused: Kernel
    operands: tuple[tuple[int, str], ...]
    links: tuple[tuple[tuple[int, str], tuple[int, str]], ...]
    requires: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    min_rows: int = 0
    max_rows: int = 0
    worth: Callable[[Axes], bool] | None = None
    place_words: Callable[[Axes], int] | None = None

    def __post_init__(self) -> None:
        """Refuse a rule that names what its kernels do not have: it would never hold."""
        for index, name in (*self.operands, *(key for link in self.links for key in link)):
            if self.place_words is not None and (index, name) in (HERE, NEXT_PLACE):
                continue
            known = [o.name for o in self.run[index].operands] if index < len(self.run) else []
            if name not in known:
                raise ValueError(
                    f"Rule: {self.fused.name} takes {name!r} of op {index}, "
                    f"expected one of {', '.join(known) or 'the run'}"
                )
        most = len(self.fused.operands)
        least = len(self.fused.produced) + self.fused.num_required
        if not least <= len(self.operands) <= most:
            raise ValueError(
                f"Rule: {self.fused.name} gets {counted(len(self.operands), 'operand')}, "
                f"expected {least} to {most}"
            )


def _of_linear(
    run: tuple[Kernel, ...],
    fused: Kernel,
    operands: tuple[tuple[int, str], ...],
    links: tuple[tuple[tuple[int, str], tuple[int, str]], ...],
    *,
    min_rows: int = 0,
    max_rows: int = 0,
    worth: Callable[[Axes], bool] | None = None,
) -> Iterator[Rule]:
    """Rules for a run with a LINEAR, without a bias and, where ``fused`` takes one, with it."""
    options: dict[str, Any] = {
        "requires": {"batch_invariant": False},
        "dtypes": fused.cuda_dtypes,
        "min_rows": min_rows,
        "max_rows": max_rows,
        "worth": worth,
    }
    yield Rule(run, fused, operands, links, **options)
    if fused.operands[-1].name == "bias":
        bias = (run.index(LINEAR), "bias")
        yield Rule(run, fused, (*operands, bias), links, **options)


def _holds_rows(axes: Axes) -> bool:
    """Whether a product's rows are held in registers: what is done at its end is free then."""
    sizes = (axes["tokens"], axes["in_features"], axes["out_features"])
    return isinstance(own_form(*sizes, "bfloat16"), HeldShape)


def _adds_parts(axes: Axes) -> bool:
    """Whether parts of in_features that another launch adds are faster than one product."""
    sizes = (axes["tokens"], axes["in_features"], axes["out_features"])
    form = own_form(*sizes, "bfloat16", adds_parts=True)
    return isinstance(form, HeldShape) or axes["tokens"] > MAX_ADD_ROWS


# What each block normalises for itself: with more rows it takes longer than a launch.
_MAX_NORM_ROWS = 2

# Few rows: what follows a product is done at its end, and the fewest are normalised by each block
# for itself. The first rules refuse more rows than the last.
_FEW_ROWS = (
    *_of_linear(
        (RMS_NORM, LINEAR, SILU_AND_MUL),
        NORM_SWIGLU,
        ((2, "out"), (0, "x"), (0, "weight"), (1, "weight")),
        (((0, "out"), (1, "x")), ((1, "out"), (2, "x"))),
        max_rows=_MAX_NORM_ROWS,
    ),
    *_of_linear(
        (RMS_NORM, LINEAR, ROPE_APPEND),
        NORM_ROPE_APPEND,
        (
            *((2, "q"), (2, "k_cache"), (2, "v_cache")),
            *((0, "x"), (2, "positions"), (2, "slot_mapping")),
            *((0, "weight"), (1, "weight"), (2, "cos_sin")),
        ),
        (((0, "out"), (1, "x")), ((1, "out"), (2, "qkv"))),
        max_rows=_MAX_NORM_ROWS,
    ),
    *_of_linear(
        (RMS_NORM, LINEAR),
        NORM_LINEAR,
        ((1, "out"), (0, "x"), (0, "weight"), (1, "weight")),
        (((0, "out"), (1, "x")),),
        max_rows=_MAX_NORM_ROWS,
    ),
    *_of_linear(
        (LINEAR, ROPE_APPEND),
        LINEAR_ROPE_APPEND,
        (
            *((1, "q"), (1, "k_cache"), (1, "v_cache")),
            *((0, "x"), (1, "positions"), (1, "slot_mapping")),
            *((0, "weight"), (1, "cos_sin")),
        ),
        (((0, "out"), (1, "qkv")),),
        min_rows=_MAX_NORM_ROWS + 1,
        worth=_holds_rows,
    ),
    *_of_linear(
        (LINEAR, ADD, RMS_NORM),
        LINEAR_ADD_RMS_NORM,
        ((1, "out"), (2, "out"), (1, "a"), (0, "x"), (0, "weight"), (2, "weight")),
        (((0, "out"), (1, "b")), ((1, "out"), (2, "x"))),
        min_rows=_MAX_NORM_ROWS + 1,
        worth=_adds_parts,
    ),
    *_of_linear(
        (LINEAR, ADD),
        LINEAR_ADD,
        ((1, "out"), (1, "a"), (0, "x"), (0, "weight")),
        (((0, "out"), (1, "b")),),
    ),
    *_of_linear(
        (LINEAR, SILU_AND_MUL),
        LINEAR_SWIGLU,
        ((1, "out"), (0, "x"), (0, "weight")),
        (((0, "out"), (1, "x")),),
    ),
)


def _of_same_operands(
    run: tuple[Kernel, ...], fused: Kernel, renamed: Mapping[tuple[int, str], str]
) -> Rule:
    """A rule for a kernel of the same operands: those of one name are one buffer.

    Args:
        run: the kernels.
        fused: takes what they take.
        renamed: what it calls operands of the run that have another name in it.
    """
    first: dict[str, tuple[int, str]] = {}
    links = []
    for index, kernel in enumerate(run):
        for operand in kernel.operands:
            key = (index, operand.name)
            name = renamed.get(key, operand.name)
            if first.setdefault(name, key) != key:
                links.append((first[name], key))
    operands = tuple([first[operand.name] for operand in fused.operands])
    return Rule(run, fused, operands, tuple(links))


# One row: a layer, and neighbouring layers, in one launch.
_ONE_ROW = Rule(
    run=(
        *(RMS_NORM, LINEAR, ROPE_APPEND, PAGED_DECODE_ATTENTION, LINEAR, ADD),
        *(RMS_NORM, LINEAR, SILU_AND_MUL, LINEAR, ADD),
    ),
    fused=DECODE_LAYER,
    operands=(
        *((10, "out"), (2, "k_cache"), (2, "v_cache"), (3, "arrivals"), HERE, NEXT_PLACE),
        *((0, "x"), (0, "weight"), (1, "weight"), (4, "weight")),
        *((6, "weight"), (7, "weight"), (9, "weight")),
        *((2, "cos_sin"), (2, "positions"), (2, "slot_mapping")),
        *((3, "block_tables"), (3, "row_ids"), (3, "seq_lens"), (3, "parts")),
    ),
    links=(
        ((0, "out"), (1, "x")),
        ((1, "out"), (2, "qkv")),
        ((2, "q"), (3, "q")),
        ((2, "k_cache"), (3, "k_cache")),
        ((2, "v_cache"), (3, "v_cache")),
        ((3, "out"), (4, "x")),
        ((0, "x"), (5, "a")),
        ((4, "out"), (5, "b")),
        ((5, "out"), (6, "x")),
        ((6, "out"), (7, "x")),
        ((7, "out"), (8, "x")),
        ((8, "out"), (9, "x")),
        ((5, "out"), (10, "a")),
        ((9, "out"), (10, "b")),
    ),
    requires={"batch_invariant": False},
    dtypes=DECODE_LAYER.cuda_dtypes,
    max_rows=1,
    worth=is_worth_one_launch,
    place_words=lambda axes: LayerSizes.of(axes).meeting_words,
)

RULES = (
    _ONE_ROW,
    *_FEW_ROWS,
    _of_same_operands(
        (APPLY_CHANGES, DECODE_ROWS, EMBEDDING, ATTENTION_PARTS),
        BEGIN_ROWS,
        {(3, "row_ids"): "live_row_ids"},
    ),
    *_of_linear(
        (LINEAR, ADD),
        LINEAR_RESIDUAL,
        ((1, "out"), (1, "a"), (0, "x"), (0, "weight")),
        (((0, "out"), (1, "b")),),
        min_rows=MIN_ROWS,
    ),
    # Where no product has taken in the rotation.
    Rule(
        run=(ROPE_APPEND, PAGED_DECODE_ATTENTION),
        fused=ROPE_APPEND_ATTENTION,
        operands=(
            *((1, "out"), (0, "k_cache"), (0, "v_cache"), (1, "arrivals")),
            *((0, "qkv"), (0, "positions"), (0, "slot_mapping")),
            *((1, "block_tables"), (1, "row_ids"), (1, "seq_lens"), (1, "parts"), (0, "cos_sin")),
        ),
        links=(
            ((0, "q"), (1, "q")),
            ((0, "k_cache"), (1, "k_cache")),
            ((0, "v_cache"), (1, "v_cache")),
        ),
        requires={"batch_invariant": False},
        dtypes=ROPE_APPEND_ATTENTION.cuda_dtypes,
        min_rows=WORTH_ROWS[0],
        max_rows=WORTH_ROWS[1],
    ),
    Rule(
        run=(ADD, RMS_NORM),
        fused=ADD_RMS_NORM,
        operands=((0, "out"), (1, "out"), (0, "a"), (0, "b"), (1, "weight")),
        links=(((0, "out"), (1, "x")),),
    ),
)
