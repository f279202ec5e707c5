"""Tables of text: aligned, within the given width, without broken words."""

from __future__ import annotations

import pytest

from learngene_zoo.terminal import choose_columns, format_table, measure_terminal, wrap_words

ROWS = [
    ["lsamd", "7", "keep the blocks that most data sets share"],
    ["a-method-with-a-long-name", "12", ""],
]


def test_without_a_width_columns_are_as_wide_as_their_content_and_stay_in_line() -> None:
    long = "x" * 90
    lines = format_table(["a", "b"], [["one", "1"], [long, "2"]]).splitlines()
    assert lines[3] == f"{long}   2"
    assert lines[2] == f"{'one':<90}   1"
    assert len(lines[1]) == len(lines[3])


def test_columns_are_aligned_below_a_heading() -> None:
    lines = format_table(["name", "layers", "title"], ROWS, right=[1], title="methods").splitlines()
    assert lines[0] == "methods"
    assert lines[1] == "name                        layers   title"
    assert set(lines[2]) == {"─"}
    assert (
        lines[3] == "lsamd                            7   keep the blocks that most data sets share"
    )
    assert lines[4] == "a-method-with-a-long-name       12"
    assert len(lines[2]) == max(map(len, lines))


def test_a_narrow_terminal_folds_sentences_between_words_and_never_the_name() -> None:
    lines = format_table(["name", "layers", "title"], ROWS, right=[1], width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[2:] == [
        "lsamd                            7   keep the blocks that",
        "                                     most data sets share",
        "a-method-with-a-long-name       12",
    ]


NUMBERS = [["closed_form-mini", "0.913 [0.901, 0.925]", "697.03K", "12", "stem_fan_in"]]
HEADS = ["learngene", "probe (95 %)", "params", "layers", "control"]


@pytest.mark.parametrize(
    ("width", "drops", "kept"),
    [
        (200, ["layers", "params"], [0, 1, 2, 3, 4]),
        (72, ["layers", "params"], [0, 1, 2, 3, 4]),
        (71, ["layers", "params"], [0, 1, 2, 4]),
        (71, ["params", "layers"], [0, 1, 3, 4]),
        (56, ["control", "params"], [0, 1, 3]),
        (52, [], [0, 1, 2]),
        (39, [], [0, 1]),
        (1, [], [0, 1]),
    ],
)
def test_the_least_important_columns_go_first_and_the_first_two_stay(
    width: int, drops: list[str], kept: list[int]
) -> None:
    right = [1, 2, 3]
    assert choose_columns(HEADS, NUMBERS, right, width, drops) == kept
    lines = format_table(HEADS, NUMBERS, right, width=width, drops=drops).splitlines()
    assert lines[-1].startswith("closed_form-mini   0.913 [0.901, 0.925]")
    assert width < 42 or max(map(len, lines)) <= width


def test_a_narrow_column_comes_back_once_a_wide_one_has_gone() -> None:
    columns, rows = ["name", "a", "b", "wide"], [["x", "1", "2", "y" * 50]]
    assert choose_columns(columns, rows, [1, 2], 20, ["b", "wide"]) == [0, 1, 2]


def test_a_column_that_is_kept_sticks_out_by_its_longest_word() -> None:
    columns, rows = ["name", "state", "reason"], [["x", "bad", f"see {'y' * 50} there"]]
    assert choose_columns(columns, rows, width=30) == [0, 1]
    assert choose_columns(columns, rows, width=30, keeps=["reason"]) == [0, 1, 2]
    lines = format_table(columns, rows, width=30, keeps=["reason"]).splitlines()
    assert lines[2:] == ["x      bad     see", f"{'':15}{'y' * 50}", f"{'':15}there"]


def test_a_path_is_folded_after_a_slash_only() -> None:
    assert wrap_words("/home/somebody/pictures/of/animals", 16) == [
        "/home/somebody/",
        "pictures/of/",
        "animals",
    ]
    assert wrap_words("mini,paper,smoke", 12) == ["mini,paper,", "smoke"]
    assert wrap_words("one two  three", 8) == ["one two", "three"]
    assert wrap_words("unbreakable", 4) == ["unbreakable"]


def test_a_table_without_rows_is_its_heading() -> None:
    assert format_table(["a", "b"], []).splitlines() == ["a   b", "─────"]


def test_the_width_is_that_of_the_variable_or_80(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert measure_terminal() == 60
    for nothing in ("0", "-3", "wide", ""):
        monkeypatch.setenv("COLUMNS", nothing)
        assert measure_terminal() > 0
