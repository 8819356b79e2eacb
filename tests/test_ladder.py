"""Which rung serves n rows, which traced program serves a rung, and what happens above the top."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.ladder import PROFILES, Ladder, token_ladder

MAXIMA = [*range(1, 140), 191, 192, 193, 200, 255, 256, 257, 500, 512, 1000, 1024]


def row_class(rows: int) -> int:
    """Kernels differ between up to 2, 3 to 8, 9 to 16, 17 to 64, 65 to 256, and more rows."""
    return sum(rows > top for top in (1, 2, 8, 16, 64, 256))


@st.composite
def ladders(draw):
    """Any ladder: every profile and any list, with a top below, at or without a limit."""
    max_rows = draw(st.integers(1, 1100))
    top = draw(st.none() | st.integers(1, max_rows))
    lists = st.lists(st.integers(1, top or max_rows), max_size=12)
    rungs = draw(st.sampled_from(PROFILES) | lists)
    off_ladder = draw(st.sampled_from(["split", "eager", "error"]))
    return Ladder(max_rows, rungs, max_capture_size=top, off_ladder=off_ladder)


# Profiles


@pytest.mark.parametrize(
    ("max_rows", "rungs", "classes"),
    [
        (1, [1], [1]),
        (2, [1, 2], [1, 2]),
        (3, [1, 2, 3], [1, 2, 3]),
        (8, [1, 2, 4, 8], [1, 2, 8]),
        (9, [1, 2, 4, 8, 9], [1, 2, 8, 9]),
        (64, [1, 2, 4, 8, 16, 32, 64], [1, 2, 8, 16, 64]),
        (100, [1, 2, 4, 8, 16, 32, 64, 100], [1, 2, 8, 16, 64, 100]),
        (128, [1, 2, 4, 8, 16, 32, 64, 128], [1, 2, 8, 16, 64, 128]),
        (129, [1, 2, 4, 8, 16, 32, 64, 128, 129], [1, 2, 8, 16, 64, 129]),
        (300, [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 300], [1, 2, 8, 16, 64, 256, 300]),
    ],
)
def test_rungs_and_classes_of_the_default(max_rows, rungs, classes):
    ladder = Ladder(max_rows)
    assert list(ladder.rungs) == rungs
    assert list(ladder.classes) == classes


@pytest.mark.parametrize(
    ("profile", "top", "rungs"),
    [
        ("latency", 64, [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]),
        ("latency", 20, [1, 2, 4, 8, 12, 16, 20]),
        ("latency", 100, [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 100]),
        (
            "throughput",
            400,
            [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 400],
        ),
        ("throughput", 33, [1, 2, 4, 8, 16, 24, 32, 33]),
        ("vllm", 33, [1, 2, 4, 8, 16, 24, 32, 33]),
    ],
)
def test_rungs_of_the_other_profiles(profile, top, rungs):
    assert list(Ladder(top, profile).rungs) == rungs
    assert list(Ladder(2 * top, profile, max_capture_size=top).rungs) == rungs


@pytest.mark.parametrize(("top", "count"), [(512, 51), (1024, 83)])
def test_vllm_captures_as_many_sizes_as_vllm(top, count):
    rungs = Ladder(top, "vllm").rungs
    assert len(rungs) == count
    assert set(rungs) == {1, 2, 4} | set(range(8, 256, 8)) | set(range(256, top + 1, 16))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("max_rows", [*MAXIMA, 4096])
def test_all_profiles_have_the_same_classes(max_rows, profile):
    """So `cugraphs plan` prices all of them by the programs of one."""
    assert Ladder(max_rows, profile).classes == Ladder(max_rows).classes


def test_the_worst_padding():
    """9 rows in 16: 7 of 16 rows, 44%. Of vLLM's sizes none is worse."""
    assert Ladder(512, "vllm").worst_padding() == (9, 16)
    assert Ladder(512).worst_padding() == (65, 128)
    assert Ladder(1).worst_padding() == (1, 1)
    assert Ladder(5, [5]).worst_padding() == (1, 5)


def test_the_mean_padding():
    """1, 2, 3 and 4 rows in 1, 2, 4 and 4: 10 live rows of 11."""
    assert Ladder(4).mean_padding() == pytest.approx(1 / 11)
    assert Ladder(3, [1, 2, 3]).mean_padding() == 0


@given(ladders())
def test_paddings_are_those_of_every_batch(ladder):
    pairs = [(rows, ladder.rung_for(rows)) for rows in range(1, ladder.top + 1)]
    shares = {(rung - rows) / rung: (rows, rung) for rows, rung in reversed(pairs)}
    assert ladder.worst_padding() == shares[max(shares)]
    computed = sum(rung for _, rung in pairs)
    live = sum(rows for rows, _ in pairs)
    assert ladder.mean_padding() == pytest.approx((computed - live) / computed)


# Every n


@given(ladders())
def test_every_row_count_has_its_smallest_rung(ladder):
    assert list(ladder.rungs) == sorted(set(ladder.rungs))
    assert ladder.top == ladder.rungs[-1] <= ladder.max_rows
    for rows in range(1, ladder.top + 1):
        assert ladder.rung_for(rows) == min(r for r in ladder.rungs if r >= rows)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("max_rows", MAXIMA)
def test_padding_of_every_profile_is_bounded(profile, max_rows):
    ladder = Ladder(max_rows, profile)
    for rows in range(1, max_rows + 1):
        padding = ladder.rung_for(rows) - rows
        # Never more than the live rows up to 128, and 63 rows above.
        assert padding < max(rows, 64) and (rows <= 128 or padding < 64)


@given(st.integers(1, 1024), st.integers(1, 1024), st.sampled_from(PROFILES))
def test_a_profile_is_the_same_below_every_top(a, b, profile):
    """A smaller top only cuts: what is below it stays."""
    low, high = sorted((a, b))
    short, long = set(Ladder(low, profile).rungs), set(Ladder(high, profile).rungs)
    assert short == {rung for rung in long if rung < low} | {low}


@given(ladders())
def test_every_program_serves_the_rungs_of_its_class_and_the_largest_is_traced(ladder):
    runs = set(ladder.rungs)
    if ladder.off_ladder == "eager":
        runs |= set(range(ladder.top + 1, ladder.max_rows + 1))
    for rows in runs:
        peers = [other for other in runs if row_class(other) == row_class(rows)]
        assert ladder.class_for(rows) == max(peers)
    assert set(ladder.classes) == {ladder.class_for(rows) for rows in runs}


# Above the top


@given(ladders(), st.integers(1, 1100))
def test_a_batch_is_dispatched_whole_and_each_part_has_a_rung(ladder, rows):
    if rows > ladder.max_rows:
        with pytest.raises(ValueError, match=rf"rows is {rows}, expected 1 to {ladder.max_rows}$"):
            ladder.dispatch(rows)
    elif rows <= ladder.top:
        assert ladder.dispatch(rows) == (rows,)
    elif ladder.off_ladder == "eager":
        assert ladder.dispatch(rows) == ()
    elif ladder.off_ladder == "error":
        with pytest.raises(ValueError, match=f"{rows} rows, expected at most {ladder.top}"):
            ladder.dispatch(rows)
    else:
        parts = ladder.dispatch(rows)
        assert sum(parts) == rows
        assert len(parts) == -(-rows // ladder.top)
        assert all(ladder.rung_for(part) >= part for part in parts)
        padding = [ladder.rung_for(part) - part for part in parts]
        assert not any(padding[:-1])


def test_a_split_batch():
    ladder = Ladder(512, max_capture_size=128)
    assert ladder.dispatch(300) == (128, 128, 44)
    assert ladder.dispatch(256) == (128, 128)
    assert ladder.dispatch(128) == (128,)


def test_only_a_smaller_top_leaves_batches_off_the_ladder():
    for profile in PROFILES:
        ladder = Ladder(700, profile, off_ladder="error")
        assert all(ladder.dispatch(rows) == (rows,) for rows in range(1, 701))


@given(ladders(), st.integers())
def test_rows_off_the_ladder_are_refused(ladder, rows):
    if not 1 <= rows <= ladder.top:
        with pytest.raises(
            ValueError, match=rf"^Ladder: rows is {rows}, expected 1 to {ladder.top}"
        ):
            ladder.rung_for(rows)
    eager = ladder.off_ladder == "eager" and ladder.top < rows <= ladder.max_rows
    if rows not in ladder.rungs and not eager:
        message = rf"^Ladder: {rows} is not a rung, expected one of \[\d"
        with pytest.raises(ValueError, match=message):
            ladder.class_for(rows)


# Lists, and what is refused


def test_a_list_is_sorted_and_stripped_of_duplicates_and_gets_the_top():
    assert Ladder(20, [8, 1, 8, 3]).rungs == (1, 3, 8, 20)
    assert Ladder(20, [8, 1, 8, 3], max_capture_size=8).rungs == (1, 3, 8)
    assert Ladder(20, []).rungs == (20,)
    assert Ladder(20, (20,)).classes == (20,)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0,), ValueError, "max_rows is 0, expected at least 1"),
        ((-1,), ValueError, "max_rows is -1, expected at least 1"),
        ((2.0,), TypeError, "max_rows is 2.0, expected an integer"),
        ((True,), TypeError, "max_rows is True, expected an integer"),
        ((8, [0, 1]), ValueError, "a rung is 0, expected 1 to 8"),
        ((8, [-4]), ValueError, "a rung is -4, expected 1 to 8"),
        ((8, [1, 9]), ValueError, "a rung is 9, expected 1 to 8; leave it out, or raise"),
        ((8, [1.5]), TypeError, "a rung is 1.5, expected an integer"),
        ((8, ["4"]), TypeError, "a rung is '4', expected an integer"),
        ((8, "fast"), ValueError, "profile is 'fast', expected one of default, latency, thr"),
    ],
)
def test_a_wrong_ladder_is_refused_in_one_line(arguments, error, message):
    with pytest.raises(error) as caught:
        Ladder(*arguments)
    assert str(caught.value).startswith(f"Ladder: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("top", [0, -1, 9])
def test_a_top_out_of_range_is_refused(top):
    with pytest.raises(ValueError, match=f"Ladder: max_capture_size is {top}, expected 1 to 8"):
        Ladder(8, max_capture_size=top)


def test_an_unknown_choice_above_the_top_is_refused():
    with pytest.raises(ValueError, match="off_ladder is 'wait', expected one of split, eager, err"):
        Ladder(8, off_ladder="wait")


# Token rungs


@given(st.integers(1, 3000), st.integers(1, 20_000), st.booleans())
def test_token_rungs_follow_vllms_limit(max_num_seqs, max_num_batched_tokens, blackwell):
    ladder = token_ladder(max_num_seqs, max_num_batched_tokens, data_centre_blackwell=blackwell)
    limit = 1024 if blackwell else 512
    assert ladder.top == min(2 * max_num_seqs, limit, max_num_batched_tokens)
    assert len(ladder.rungs) <= 16
    for tokens in range(1, ladder.top + 1):
        assert ladder.dispatch(tokens) == (tokens,)
        rung = ladder.rung_for(tokens)
        assert tokens <= 32 or (rung - tokens) / rung < 1 / 3
    if max_num_batched_tokens > ladder.top:
        assert ladder.dispatch(max_num_batched_tokens) == ()


def test_token_rungs_of_a_usual_engine():
    rungs = token_ladder(256, 8192).rungs
    assert rungs == (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
