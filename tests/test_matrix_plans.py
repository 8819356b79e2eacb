"""Which algorithm a matrix product is planned with; cuBLASLt is played by a small stand-in."""

import ctypes
import types

import numpy as np
import pytest

from cugraphs import cublaslt
from cugraphs.cublaslt import CublasLt, MatrixShape
from cugraphs.kernel import MatrixProduct
from cugraphs.tuning_table import Choice, Product, TuningTable, write_table

CARD, VERSION = "NVIDIA Toy", 130100
RESULT = np.dtype(
    [
        ("algo", [("data_", "<u8", (8,))]),
        ("workspace_size", "<u8"),
        ("state", "<i4"),
        ("waves_count", "<f4"),
        ("reserved", "<i4", (4,)),
    ]
)
SHAPE = MatrixShape(tokens=12, out_features=64, in_features=32, dtype="bfloat16")
PRODUCT = Product("bfloat16", 64, 32)


def algorithm(number):
    return bytes([number]) * 64


class Library:
    """Proposes algorithms 1, 2, 3, … and runs those below 100; ``made`` counts what is alive."""

    matmul_heuristic_result_dtype = RESULT
    MatmulDescAttribute = types.SimpleNamespace(
        TRANSA=3, EPILOGUE=7, BIAS_POINTER=8, BIAS_DATA_TYPE=26
    )
    MatmulPreferenceAttribute = types.SimpleNamespace(
        MAX_WORKSPACE_BYTES=1, REDUCTION_SCHEME_MASK=3
    )
    Epilogue = types.SimpleNamespace(BIAS=4)

    def __init__(self, proposed=3, workspace_bytes=1024):
        self.proposed, self.workspace_bytes = proposed, workspace_bytes
        self.made, self.num_heuristics = 0, 0
        self.compute_types, self.preferences = [], {}

    def _make(self, *_):
        self.made += 1
        return self.made

    def _destroy(self, *_):
        self.made -= 1

    create = matrix_layout_create = matmul_preference_create = _make
    destroy = matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    def get_version(self):
        return VERSION

    def matmul_desc_create(self, compute_type, scale_type):
        self.compute_types.append(compute_type)
        return self._make()

    def matmul_desc_set_attribute(self, *_):
        pass

    def matmul_preference_set_attribute(self, preference, attribute, pointer, nbytes):
        value = ctypes.string_at(pointer, nbytes)
        self.preferences[attribute] = int.from_bytes(value, "little")

    def matmul_algo_get_heuristic(self, handle, description, *rest):
        *_, count, results, found = rest
        self.num_heuristics += 1
        rows = np.zeros(min(count, self.proposed), RESULT)
        for i in range(len(rows)):
            rows[i]["algo"] = np.frombuffer(algorithm(i + 1), RESULT["algo"])[0]
            rows[i]["workspace_size"] = self.workspace_bytes
        ctypes.memmove(results, rows.tobytes(), rows.nbytes)
        ctypes.memmove(found, np.array([len(rows)], np.int32).tobytes(), 4)

    def matmul_algo_check(self, handle, description, a, b, c, d, algo, result):
        if ctypes.string_at(algo, 64)[0] >= 100:
            raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
        row = np.zeros(1, RESULT)
        row["workspace_size"] = self.workspace_bytes
        ctypes.memmove(result, row.tobytes(), row.nbytes)


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Makes a handle over a library, with a table of choices for `PRODUCT` by row class."""
    monkeypatch.setattr(cublaslt, "_is_capturing", lambda stream: stream == 7)

    def make_handle(library, choices=None, version=VERSION, **options):
        monkeypatch.setattr(cublaslt, "_import_bindings", lambda: library)
        if choices is None:
            return CublasLt(**options)
        path = tmp_path / "table.json"
        found = {(PRODUCT, rows): choice for rows, choice in choices.items()}
        write_table(path, TuningTable(CARD, version, found))
        return CublasLt(card=CARD, tuning_table=path, **options)

    return make_handle


def planned(lt, shape=SHAPE, **options):
    return lt.plan(shape, stream=0, **options).algorithm.tobytes()


def test_without_a_table_the_librarys_first_heuristic_is_taken(make):
    assert planned(make(Library())) == algorithm(1)


def test_the_table_decides_for_its_row_class_alone_and_nothing_is_asked(make):
    library = Library()
    lt = make(library, {16: Choice(algorithm(9), 0, 1.0, 2.0)})
    for rows, expected in ((8, 1), (9, 9), (16, 9), (17, 1), (9000, 1)):
        library.num_heuristics = 0
        assert planned(lt, MatrixShape(rows, 64, 32, "bfloat16")) == algorithm(expected)
        assert library.num_heuristics == (expected == 1)


@pytest.mark.parametrize(
    "shape",
    [
        MatrixShape(12, 64, 32, "float16"),
        MatrixShape(12, 64, 32, "bfloat16", has_bias=True),
        MatrixShape(12, 32, 64, "bfloat16"),
    ],
)
def test_another_product_is_the_librarys(make, shape):
    assert planned(make(Library(), {16: Choice(algorithm(9), 0, 1.0, 2.0)}), shape) == algorithm(1)


def test_where_the_first_heuristic_was_fastest_it_is_asked_for(make):
    assert planned(make(Library(), {16: Choice(None, 0, 1.0, 1.0)})) == algorithm(1)


def test_a_table_of_another_version_is_not_used(make):
    lt = make(Library(), {16: Choice(algorithm(9), 0, 1.0, 2.0)}, version=120900)
    assert planned(lt) == algorithm(1)


@pytest.mark.parametrize(
    ("number", "workspace_bytes"), [(100, 0), (9, MatrixProduct.workspace_bytes + 1)]
)
def test_an_algorithm_that_cannot_run_leaves_the_choice_to_the_library_and_says_so(
    make, caplog, number, workspace_bytes
):
    lt = make(
        Library(workspace_bytes=workspace_bytes), {16: Choice(algorithm(number), 0, 1.0, 2.0)}
    )
    with caplog.at_level("INFO", logger="cugraphs"):
        assert planned(lt) == algorithm(1)
    assert "the tuned algorithm cannot run" in caplog.text


def test_planning_while_the_stream_captures_is_an_error_and_a_plan_that_exists_is_not(make):
    lt = make(Library())
    with pytest.raises(RuntimeError, match=r"^cuBLASLt: .* is planned while its stream is captur"):
        lt.plan(SHAPE, stream=7)
    plan = lt.plan(SHAPE, stream=0)
    assert lt.plan(SHAPE, stream=7) is plan


def test_a_shape_without_an_algorithm_is_an_error_that_names_it(make):
    with pytest.raises(RuntimeError, match=r"^cuBLASLt: there is no algorithm for .*tokens=12"):
        planned(make(Library(proposed=0)))


def test_partial_sums_stay_in_float32_and_within_the_workspace(make):
    library = Library()
    planned(make(library))
    assert library.preferences == {1: MatrixProduct.workspace_bytes, 3: 2}


def test_tf32_is_of_float32_alone_and_only_where_it_is_allowed(make):
    full, fast = 68, 77  # CUBLAS_COMPUTE_32F and CUBLAS_COMPUTE_32F_FAST_TF32
    for allow, dtype, compute, name in (
        (False, "float32", full, "float32"),
        (True, "float32", fast, "tf32"),
        (True, "bfloat16", full, "bfloat16"),
    ):
        library = Library()
        lt = make(library, allow_tf32=allow)
        shape = MatrixShape(12, 64, 32, dtype)
        planned(lt, shape)
        assert library.compute_types == [compute]
        assert lt.product(shape) == Product(name, 64, 32)


def test_close_destroys_all_that_was_made(make):
    library = Library()
    lt = make(library, {16: Choice(algorithm(100), 0, 1.0, 2.0)})
    planned(lt)
    lt.heuristics(SHAPE, count=3)
    lt.close()
    assert library.made == 0
