"""Tables of tuned products: what a file may hold, what is looked up, what is left out and said."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs import tuning_table
from cugraphs.tuning_table import (
    ALGORITHM_BYTES,
    DTYPES,
    ROW_CLASSES,
    SHIPPED,
    Choice,
    Product,
    TuningTable,
    load_table,
    own_table_path,
    read_table,
    row_class,
    table_name,
    version_text,
    write_table,
)

CARD, VERSION = "NVIDIA Toy 24GB", 130100
PRODUCT = Product("bfloat16", 6144, 4096)
CHOICE = Choice(bytes(range(ALGORITHM_BYTES)), 4096, 10.5, 12.0)
TABLE = TuningTable(CARD, VERSION, {(PRODUCT, 16): CHOICE})

positive = st.integers(1, 1 << 20)
times = st.integers(1, 10**9).map(lambda n: n / 1000)  # a table holds nanoseconds
products = st.builds(Product, st.sampled_from(DTYPES), positive, positive, st.booleans())
choices = st.builds(
    Choice,
    st.none() | st.binary(min_size=ALGORITHM_BYTES, max_size=ALGORITHM_BYTES),
    st.integers(0, 1 << 30),
    times,
    times,
)
keys = st.tuples(products, st.sampled_from(ROW_CLASSES))


@pytest.fixture
def folders(monkeypatch, tmp_path):
    """Empty folders for shipped tables and the user's own."""
    monkeypatch.setattr(tuning_table, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(tuning_table, "cache_folder", lambda kind: tmp_path / kind)
    return tmp_path


def shipped(folders):
    return folders / "shipped" / table_name(CARD)


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 1), (3, 4), (9, 16), (16, 16), (17, 24), (257, 384), (8192, 8192)]
)
def test_a_row_class_is_the_smallest_that_holds_the_rows(rows, expected):
    assert row_class(rows) == expected


def test_above_the_largest_class_there_is_none():
    assert row_class(8193) is None
    table = TuningTable(CARD, VERSION, {(PRODUCT, 8192): CHOICE})
    assert table.find(PRODUCT, 8192) == CHOICE and table.find(PRODUCT, 8193) is None


def test_a_choice_is_found_for_every_row_of_its_class_and_for_no_other_product():
    found = [rows for rows in range(1, 40) if TABLE.find(PRODUCT, rows) is not None]
    assert found == list(range(9, 17))
    for change in (
        {"dtype": "float16"},
        {"out_features": 6145},
        {"in_features": 4095},
        {"has_bias": True},
    ):
        assert TABLE.find(dataclasses.replace(PRODUCT, **change), 16) is None


@given(st.dictionaries(keys, choices, max_size=8), st.text(max_size=20), st.integers(0, 10**7))
def test_a_table_is_read_as_it_was_written(tmp_path_factory, found, card, version):
    path = tmp_path_factory.mktemp("tables") / "table.json"
    table = TuningTable(card, version, found)
    write_table(path, table)
    assert read_table(path) == table
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_is_the_same_whatever_the_order_in_which_products_were_timed(tmp_path):
    other = Product("bfloat16", 4096, 4096)
    found = {(PRODUCT, 16): CHOICE, (other, 8): CHOICE, (PRODUCT, 8): CHOICE}
    for name, order in (("a", list(found)), ("b", list(found)[::-1])):
        write_table(tmp_path / name, TuningTable(CARD, VERSION, {key: CHOICE for key in order}))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_users_own_table_goes_before_the_shipped_one_and_both_count(folders, caplog):
    mine = dataclasses.replace(CHOICE, us=5.0)
    other = Product("bfloat16", 4096, 4096)
    write_table(shipped(folders), TABLE.updated({(other, 8): CHOICE}))
    write_table(own_table_path(CARD), TuningTable(CARD, VERSION, {(PRODUCT, 16): mine}))
    with caplog.at_level("INFO", logger="cugraphs"):
        table = load_table(CARD, VERSION)
    assert table.choices == {(PRODUCT, 16): mine, (other, 8): CHOICE}
    assert caplog.messages == []


def test_a_table_that_is_named_is_the_only_one(folders, tmp_path):
    write_table(shipped(folders), TABLE)
    write_table(tmp_path / "named.json", TuningTable(CARD, VERSION, {(PRODUCT, 8): CHOICE}))
    assert list(load_table(CARD, VERSION, tmp_path / "named.json").choices) == [(PRODUCT, 8)]


@pytest.mark.parametrize(
    ("card", "version", "says"),
    [
        (CARD, 130200, "is for NVIDIA Toy 24GB, cuBLASLt 13.1.0): run `cugraphs tune MODEL`"),
        ("NVIDIA Toy", 130100, "is for NVIDIA Toy 24GB, cuBLASLt 13.1.0): run `cugraphs tune MODE"),
    ],
)
def test_a_table_of_another_card_or_version_is_left_out_with_one_notice(
    folders, tmp_path, caplog, card, version, says
):
    write_table(tmp_path / "named.json", TABLE)
    with caplog.at_level("INFO", logger="cugraphs"):
        assert load_table(card, version, tmp_path / "named.json").choices == {}
    (message,) = caplog.messages
    assert message.startswith(f"matrix products are not tuned for {card}, cuBLASLt")
    assert says in message and str(tmp_path / "named.json") in message


def test_where_there_is_no_table_one_notice_says_what_makes_one(folders, caplog):
    with caplog.at_level("INFO", logger="cugraphs"):
        assert load_table(CARD, VERSION).choices == {}
    (message,) = caplog.messages
    assert message == (
        "matrix products are not tuned for NVIDIA Toy 24GB, cuBLASLt 13.1.0 (no table): run "
        "`cugraphs tune MODEL`"
    )


def test_a_shipped_table_of_an_older_version_does_not_hide_the_users_own(folders, caplog):
    write_table(shipped(folders), TuningTable(CARD, 120900, {(PRODUCT, 8): CHOICE}))
    write_table(own_table_path(CARD), TABLE)
    with caplog.at_level("INFO", logger="cugraphs"):
        assert load_table(CARD, VERSION) == TABLE
    assert caplog.messages == []


def entry(**changes):
    good = {
        "dtype": "bfloat16",
        "out_features": 64,
        "in_features": 64,
        "bias": False,
        "rows": 16,
        "algorithm": "00" * ALGORITHM_BYTES,
        "workspace_bytes": 0,
        "us": 1.0,
        "first_us": 1,
    }
    return {**good, **changes}


def document(*entries, **changes):
    return {"format": 1, "card": CARD, "cublaslt": VERSION, "products": list(entries), **changes}


def test_the_entry_that_the_broken_ones_are_made_from_is_good(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(document(entry(), entry(rows=8, algorithm=None))))
    assert len(read_table(path).choices) == 2


BROKEN = {
    "not JSON": (b"{", "Expecting property name"),
    "not UTF-8": (b"\xff\xfe\xfa", "can't decode"),
    "a list": ([], "list indices"),
    "nothing": ({}, "'format' is missing"),
    "a later format": (document(format=2), "format is 2, expected 1"),
    "no card": (document(card=None), "card or cublaslt"),
    "a version in words": (document(cublaslt="13.1"), "card or cublaslt"),
    "products in words": (document(products="all"), "indices"),
    "no rows": (document({"dtype": "bfloat16"}), "'rows' is missing"),
    "rows between classes": (document(entry(rows=17)), "rows is 17, expected one of"),
    "a dtype that is none": (document(entry(dtype="int8")), "dtype is 'int8', expected"),
    "no features": (document(entry(out_features=0)), "out_features is 0, expected a pos"),
    "features in words": (document(entry(in_features="64")), "in_features is '64', expected"),
    "a bias in words": (document(entry(bias="no")), "bias is 'no', expected true"),
    "half an algorithm": (document(entry(algorithm="00" * 32)), "algorithm has 32 bytes"),
    "no hexadecimal": (document(entry(algorithm="zz")), "hexadecimal"),
    "a number as algorithm": (document(entry(algorithm=7)), "fromhex"),
    "a negative workspace": (document(entry(workspace_bytes=-1)), "workspace_bytes is -1"),
    "no time": (document(entry(us=0)), "us is 0, expected a positive number"),
    "an endless time": (document(entry(first_us=float("inf"))), "first_us is inf, expected"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_one_line_that_names_it_and_says_what_to_do(tmp_path, kind):
    content, says = BROKEN[kind]
    path = tmp_path / "table.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(ValueError) as caught:
        load_table(CARD, VERSION, path)
    message = str(caught.value)
    assert message.startswith(f"{path}: is no tuning table (") and says in message
    assert message.endswith("; delete it, or name another") and "\n" not in message


def test_a_file_that_is_not_there_is_an_error_where_it_was_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.json: is no tuning table \(No such file"):
        load_table(CARD, VERSION, tmp_path / "none.json")


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"table\.json: cannot be written \(.*; give another --out"):
        write_table(tmp_path / "file" / "table.json", TABLE)


def test_names_and_versions_as_people_write_them():
    assert table_name("NVIDIA H200") == "nvidia_h200.json"
    assert table_name("NVIDIA GeForce RTX 4090") == "nvidia_geforce_rtx_4090.json"
    assert version_text(130100) == "13.1.0" and version_text(120805) == "12.8.5"


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.json")), ids=lambda path: path.name)
def test_shipped_tables_are_named_by_their_card_and_keep_what_is_faster(path):
    table = read_table(path)
    assert path.name == table_name(table.card)
    assert table.choices
    for choice in table.choices.values():
        assert choice.us <= choice.first_us
        assert choice.algorithm is not None or choice.us == choice.first_us
