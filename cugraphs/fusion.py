"""Replace runs of ops by one kernel, as the rules say.

A fused program interprets to the same numbers as the original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cugraphs.fusion_rules import HERE, NEXT_PLACE, RULES, Rule
from cugraphs.kernel import ArrayType, Axes, Dim
from cugraphs.kernels import LINEAR
from cugraphs.ladder import CLASS_ROWS
from cugraphs.meeting_places import LEAST_LAYERS, declare_places
from cugraphs.program import Buffer, Kind, Op, Program


def fuse(program: Program, rules: Sequence[Rule] = RULES, *, least_rows: int = 1) -> Program:
    """The program with every run that a rule matches replaced, first rule first.

    The new program shares its buffers with the old one; a temporary that lived only inside a
    fused run is dropped. A rule with places holds nowhere if there are too few runs for it.

    Args:
        program: traced at the largest sizes of its dims.
        rules: to try in order.
        least_rows: that its dims are bound at.
    """
    uses = Counter(buffer for op in program.ops for buffer in op.operands)
    # Layers are alike, so what a rule makes of ops of some kinds is worked out once. A kind is what
    # an op is but for which buffers it has; a dim's name tells its maximum within a program.
    types = {buffer: str(buffer.type) for buffer in program.buffers}
    kinds = [(op.kernel, *[types[b] for b in op.operands], repr(op.attrs)) for op in program.ops]
    known: dict[Hashable, _Scalars | None] = {}
    ops: list[Op] = []
    placed: dict[int, list[int]] = {}  # ops with places, by the number of their rule
    index = 0
    while index < len(program.ops):
        for number, rule in enumerate(rules):
            end = index + len(rule.run)
            run = program.ops[index:end]
            if tuple([op.kernel for op in run]) != rule.run:
                continue
            key = (number, *kinds[index:end])
            if key in known and known[key] is None:
                continue
            operands = _operands(rule, run, uses)
            if operands is None:
                continue
            if key not in known:
                known[key] = _scalars(rule, run, [b.type for b in operands], least_rows)
            scalars = known[key]
            if scalars is not None:
                if rule.place_words is not None:
                    placed.setdefault(number, []).append(len(ops))
                ops.append(Op(rule.fused, operands, scalars.attrs, scalars.axes))
                index = end
                break
        else:
            ops.append(program.ops[index])
            index += 1
    too_few = [number for number, indices in placed.items() if len(indices) < LEAST_LAYERS]
    if too_few:
        others = [rule for number, rule in enumerate(rules) if number not in too_few]
        return fuse(program, others, least_rows=least_rows)
    kernels = [rules[number].fused.name for number in placed]
    assert len(set(kernels)) == len(kernels), f"two rules give {kernels} places of the same names"
    places: list[Buffer] = []
    for number, indices in placed.items():
        places += _give_places(rules[number], ops, indices, len(program.buffers) + len(places))
    used = {buffer for op in ops for buffer in op.operands}
    buffers = [b for b in program.buffers if b in used or b.kind is not Kind.TEMP]
    return Program(program.name, [*buffers, *places], ops, program.dims)


def _give_places(
    rule: Rule, ops: list[Op], indices: Sequence[int], first_id: int
) -> Sequence[Buffer]:
    """Give the ops of a rule places of the program, which they use by turns; returns these."""
    here, next_place = rule.operands.index(HERE), rule.operands.index(NEXT_PLACE)
    (words,) = ops[indices[0]].operands[here].type.shape
    places = declare_places(rule.fused.name, len(indices), words, first_id)
    for number, index in enumerate(indices):
        operands = list(ops[index].operands)
        operands[here] = places[number % len(places)]
        operands[next_place] = places[(number + 1) % len(indices) % len(places)]
        ops[index] = replace(ops[index], operands=tuple(operands))
    return places


def _operands(
    rule: Rule, run: Sequence[Op], uses: Mapping[Buffer, int]
) -> tuple[Buffer, ...] | None:
    """The fused op's buffers; None where those of the run are not linked as the rule says."""
    named = {
        (index, operand.name): buffer
        for index, op in enumerate(run)
        for operand, buffer in zip(op.kernel.operands, op.operands, strict=False)
    }
    if any(named.get(left) is not named.get(right) for left, right in rule.links):
        return None
    if rule.place_words is not None:
        place = ArrayType((_words(rule, rule.place_words, named),), "int32")
        named |= {key: Buffer(-1, key[1], place, Kind.STATE) for key in (HERE, NEXT_PLACE)}
    if any(key not in named for key in rule.operands):
        return None
    operands = tuple([named[key] for key in rule.operands])
    written = {buffer for op in run for buffer in op.written}
    inside = Counter([buffer for op in run for buffer in op.operands])
    for buffer, count in inside.items():
        inner = buffer in written and buffer.kind is Kind.TEMP and uses[buffer] == count
        if buffer not in operands and not inner:
            return None
    if not written.isdisjoint(operands[len(rule.fused.produced) :]):
        return None  # it would read what it writes
    return operands


def _words(
    rule: Rule, place_words: Callable[[Axes], int], named: Mapping[tuple[int, str], Buffer]
) -> int:
    """Words of a place, from the operands that the run has."""
    axes = {
        name: int(size)
        for operand, key in zip(rule.fused.operands, rule.operands, strict=False)
        if key in named
        for (scale, name, offset), size in zip(operand.axes, named[key].type.shape, strict=True)
        if scale == 1 and not offset
    }
    return place_words(axes)


@dataclass(frozen=True)
class _Scalars:
    """What a fused op has beside its buffers."""

    attrs: Mapping[str, Any]
    axes: Mapping[str, int]


def _scalars(
    rule: Rule, run: Sequence[Op], types: Sequence[ArrayType], least_rows: int
) -> _Scalars | None:
    """The fused op's scalars and axes; None where the rule or its kernel takes no such run.

    Args:
        rule: whose kernels the run has, linked as it says.
        run: of which nothing is looked at but kernels, types and scalars.
        types: of the fused op's operands.
        least_rows: that the program is bound at.
    """
    attrs = {key: value for op in run for key, value in op.attrs.items()}
    if any(op.attrs[key] != attrs[key] for op in run for key in op.attrs):
        return None  # one scalar, two values
    if any(attrs.pop(key, value) != value for key, value in rule.requires.items()):
        return None
    if rule.min_rows and int(run[0].axes["tokens"]) < rule.min_rows:
        return None
    if rule.max_rows and int(run[0].axes["tokens"]) > rule.max_rows:
        return None
    if rule.dtypes and rule.fused.dtype_of(types) not in rule.dtypes:
        return None
    produced = len(rule.fused.produced)
    read = types[produced:]
    try:
        inferred, axes = rule.fused.infer(read, attrs)
        most = max(
            [int(axis) for type_ in read for axis in type_.shape if isinstance(axis, Dim)],
            default=1,
        )
        for rows in (1, *[rows for rows in CLASS_ROWS if least_rows <= rows < most]):
            rule.fused.infer([_bound(type_, rows) for type_ in read], attrs)
    except ValueError:  # sizes that the fused kernel is not for
        return None
    assert inferred == types[:produced], rule
    if rule.worth is not None:
        linear = next(op for op in run if op.kernel is LINEAR)
        if not rule.worth({name: int(size) for name, size in {**axes, **linear.axes}.items()}):
            return None
    return _Scalars(attrs, axes)


def _bound(type_: ArrayType, rows: int) -> ArrayType:
    """The type of a buffer where each dim is bound to so many, or at its most."""
    dims = [axis for axis in type_.shape if isinstance(axis, Dim)]
    return type_.bind({dim.name: min(rows, int(dim) - dim.offset) for dim in dims})
