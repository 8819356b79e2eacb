"""Kernels of another stream that keep the card's multiprocessors, and their shared memory, busy."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def busy_card():
    """Sorts, one after another, beside whatever else is launched.

    Their blocks lie beside other kernels' on a multiprocessor, and loads from shared memory take
    long there: what does not wait for such a load, and should, is found out.
    """
    import cupy

    done = threading.Event()

    def sort():
        with cupy.cuda.Stream(non_blocking=True) as stream:
            values = cupy.random.random((2048, 2048), dtype=cupy.float32)
            while not done.is_set():
                for _ in range(20):
                    cupy.sort(values, axis=0)
                stream.synchronize()

    with ThreadPoolExecutor(1) as pool:
        sorting = pool.submit(sort)
        try:
            yield
        finally:
            done.set()
        sorting.result()
