"""The text of a program, and the work it costs."""

from tiny_kernels import ACCUMULATE

from cugraphs.kernel import Cost
from cugraphs.kernels import ADD, ATTENTION_PARTS, LINEAR, PAGED_DECODE_ATTENTION, RMS_NORM
from cugraphs.program import Kind, Program
from cugraphs.trace import Tracer

EXPECTED_TEXT = """\
program step(rows<=64, seqs<=8)
  input  %0:x bfloat16[rows, 8]
  input  %1:starts int32[seqs+1]
  output %8:result bfloat16[rows, 8]
  state  %3:total bfloat16[8]
  weight %2:norm bfloat16[8]
  weight %6:proj bfloat16[8, 8]
  temp   %4:out bfloat16[rows, 8]
  temp   %5:out bfloat16[rows, 8]
  temp   %7:out bfloat16[rows, 8]
    0  rms_norm(%4:out <- %0:x, %2:norm, eps=1e-05)
    1  accumulate(%5:out, &%3:total <- %4:out)
    2  linear(%7:out <- %5:out, %6:proj, batch_invariant=True)
    3  add(%8:result <- %0:x, %7:out)"""


def traced() -> Program:
    t = Tracer()
    x = t.input("x", (t.dim("rows", 64), 8), "bfloat16")
    t.input("starts", (t.dim("seqs", 8) + 1,), "int32")
    norm = t.weight("norm", (8,), "bfloat16")
    total = t.state("total", (8,), "bfloat16")
    y = t.call(RMS_NORM, x, norm, eps=1e-5)
    y = t.call(ACCUMULATE, total, y)
    y = t.call(LINEAR, y, t.weight("proj", (8, 8), "bfloat16"), batch_invariant=True)
    t.output(t.call(ADD, x, y), "result")
    return t.program


def test_the_text_of_a_program():
    assert str(traced()) == EXPECTED_TEXT


def test_buffers_of_a_kind_in_declaration_order():
    program = traced()
    temps = [buffer.id for buffer in program.of_kind(Kind.TEMP)]
    assert temps == [4, 5, 7]
    assert [b.name for b in program.of_kind(Kind.OUTPUT, Kind.INPUT)] == ["x", "starts", "result"]


def test_written_and_read_operands_follow_the_declaration():
    _, accumulate, linear, _ = traced().ops
    assert [repr(buffer) for buffer in accumulate.written] == ["%5:out"]
    assert [repr(buffer) for buffer in accumulate.read] == ["%3:total", "%4:out"]  # updated first
    assert [repr(buffer) for buffer in linear.read] == ["%5:out", "%6:proj"]  # no bias


def linear_program(dtype: str) -> Program:
    t = Tracer()
    x = t.input("x", (t.dim("rows", 64), 8), dtype)
    t.output(t.call(LINEAR, x, t.weight("w", (6, 8), dtype)))
    return t.program


def test_a_cost_counts_each_operand_once_at_the_bound_size():
    # 5 rows of 8 in, 6*8 weights, 5 rows of 6 out, 2 bytes each; 2 flops a product
    program = linear_program("bfloat16")
    assert program.cost({"rows": 5}) == Cost(2 * (5 * 8 + 48 + 5 * 6), 2 * 5 * 48)
    assert linear_program("float32").cost({"rows": 5}).bytes_accessed == 4 * (40 + 48 + 30)


def test_the_cost_of_a_program_is_the_sum_of_its_ops():
    t = Tracer()
    x = t.input("x", (t.dim("rows", 64), 8), "float32")
    y = t.call(RMS_NORM, x, t.weight("norm", (8,), "float32"), eps=1e-5)
    t.output(t.call(ADD, x, y))
    # the norm moves 2*24 numbers and the weight, the addition 3*24; 4 and 1 flops a number
    assert t.program.cost({"rows": 3}) == Cost(4 * (2 * 24 + 8) + 4 * 3 * 24, 4 * 24 + 24)
    assert Program("empty").cost({}) == Cost(0, 0)


def test_a_cost_may_use_the_context():
    t = Tracer()
    rows = t.dim("rows", 64)
    q = t.input("q", (rows, 8), "bfloat16")
    cache = [t.state(name, (9, 1, 4, 4), "bfloat16") for name in ("k", "v")]
    tables = [t.input("tables", (64, 5), "int32")]
    tables += [t.input(name, (rows,), "int32") for name in ("ids", "lens")]
    sizes = {"heads": 2, "kv_heads": 1, "part_words": 8}
    parts, arrivals = t.call_tuple(ATTENTION_PARTS, *tables[1:], **sizes)
    t.output(t.call(PAGED_DECODE_ATTENTION, arrivals, q, *cache, *tables, parts, scale=1.0))
    # 2 rows: q and out, 10 tokens of K and of V (1 head of 4), 3 of the table, slot and length
    cost = t.program.ops[-1].cost({"rows": 2}, context=10)
    assert cost.bytes_accessed == 2 * (2 * 2 * 8 + 2 * 2 * 10 * 4) + 4 * 2 * (3 + 2)
    assert cost.flops == 2 * (2 * 8 * 10) * 2
