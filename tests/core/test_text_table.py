"""Tables of text: aligned, whole in a pipe, folded on a terminal and never cut."""

from __future__ import annotations

from learngene_zoo.text import text_table

ROWS = [["lsamd", "7", "keep the blocks that most data sets share"], ["a-method-with-a-long-name", "12", ""]]


def test_in_a_pipe_columns_are_as_wide_as_their_content_and_stay_in_line() -> None:
    long = "x" * 90
    lines = text_table(["a", "b"], [["one", "1"], [long, "2"]]).splitlines()
    assert lines[3] == f"{long}   2"
    assert lines[2] == f"{'one':<90}   1"
    assert len(lines[1]) == len(lines[3])


def test_columns_are_aligned_below_a_heading() -> None:
    lines = text_table(["name", "layers", "title"], ROWS, right=[1], title="methods").splitlines()
    assert lines[0] == "methods"
    assert lines[1] == "name                        layers   title"
    assert set(lines[2]) == {"─"}
    assert lines[3] == "lsamd                            7   keep the blocks that most data sets share"
    assert lines[4] == "a-method-with-a-long-name       12"
    assert len(lines[2]) == max(map(len, lines))


def test_a_narrow_terminal_folds_the_widest_cells() -> None:
    lines = text_table(["name", "layers", "title"], ROWS, right=[1], width=44).splitlines()
    assert max(map(len, lines)) <= 44
    words = " ".join(lines).split()
    assert {"keep", "the", "blocks", "that", "most", "data", "sets", "share"} <= set(words)
    names = [line.split()[0] for line in lines[2:] if not line.startswith(" ")]
    assert "".join(names) == "lsamd" + "a-method-with-a-long-name"


def test_a_terminal_that_is_too_narrow_for_the_columns_is_exceeded() -> None:
    lines = text_table(["one", "two"], [["12345678", "12345678"]], width=5).splitlines()
    assert lines[2] == "12345678   12345678"


def test_a_table_without_rows_is_its_heading() -> None:
    assert text_table(["a", "b"], []).splitlines() == ["a   b", "─────"]
