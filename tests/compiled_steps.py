"""Small steps for ``cugraphs.compile``, and a device without a GPU that captures."""

import numpy as np
from tiny_kernels import ACCUMULATE, DOUBLE

import cugraphs
from cugraphs.cpu_device import CpuDevice
from cugraphs.device import CaptureError
from cugraphs.kernels import ADD, EMBEDDING, LINEAR

WIDTH = 4


def doubled(t, rows):
    t.output(t.call(DOUBLE, t.input("x", (rows, WIDTH), "float32")), "y")


def running_total(t, rows):
    """``out`` is each row plus the sum of all rows so far, this call's included."""
    x = t.input("x", (rows, WIDTH), "float32")
    t.output(t.call(ACCUMULATE, t.state("total", (WIDTH,), "float32"), x), "out")


def matrix(t, rows):
    x = t.input("x", (rows, WIDTH), "float32")
    y = t.call(LINEAR, x, t.weight("w", (WIDTH, WIDTH), "float32"))
    t.output(t.call(ADD, y, x), "y")


def table_rows(t, rows):
    """Rows of a table that comes with the call."""
    ids = t.input("ids", (rows,), "int32")
    t.output(t.call(EMBEDDING, ids, t.input("table", (6, WIDTH), "float32")), "y")


def compiled(step, buckets=(1, 2, 4, 8), **options):
    return cugraphs.compile(step, buckets=buckets, device="cpu", poison=True, debug=True, **options)


def floats(rows, seed=0, width=WIDTH):
    return np.random.default_rng(seed).standard_normal((rows, width), np.float32)


class RecordingGraph:
    """What a device without a GPU can capture: the calls themselves."""

    num_nodes = 3

    def __init__(self, run):
        self.run = run

    def launch(self):
        self.run()


class CapturingDevice(CpuDevice):
    """Replays by calling again; ``fails_at`` captures in, it cannot."""

    has_graphs = True

    def __init__(self, fails_at=None):
        self.num_captures, self.fails_at = 0, fails_at

    def capture(self, run):
        if self.num_captures == self.fails_at:
            raise CaptureError("capture fails in op 0 double: it is planted")
        self.num_captures += 1
        return RecordingGraph(run)
