"""Messages name arguments as the user writes them: in Python, or on the command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import learngene_zoo as lg
from learngene_zoo.cli.main import main
from learngene_zoo.errors import WrongCall
from learngene_zoo.text import name_option, use_option_names

CASES = [
    (("lr",), {}, "lr", "--lr"),
    (("max_params",), {}, "max_params", "--max-params"),
    (("tries",), {}, "tries", "--try"),
    (("clip", 1), {}, "clip=1", "--clip 1"),
    (("task", "folder:mine"), {}, 'task="folder:mine"', "--task folder:mine"),
    (("task", 'folder:a "b"'), {}, r'task="folder:a \"b\""', "--task 'folder:a \"b\"'"),
    (("head", False), {}, "head=False", "--no-head"),
    (("keep_interface", True), {}, "keep_interface=True", "--keep-interface"),
    (("device", "cpu"), {"of_run": True}, 'Run(device="cpu")', "--device cpu"),
    (("device",), {"of_run": True}, "device", "--device"),
]


@pytest.mark.parametrize(("arguments", "keywords", "python", "option"), CASES)
def test_an_argument_and_its_option(
    arguments: tuple[str, object], keywords: dict[str, bool], python: str, option: str
) -> None:
    assert name_option(*arguments, **keywords) == python
    with use_option_names():
        assert name_option(*arguments, **keywords) == option
    assert name_option(*arguments, **keywords) == python


def test_a_message_in_python_and_on_the_command_line() -> None:
    with pytest.raises(WrongCall, match=r"at least one of max_params, max_flops, .* and max_drop$"):
        lg.shrink(task="digits")
    result = CliRunner().invoke(main, ["shrink", "--task", "digits"])
    assert result.stderr.endswith(
        "at least one of --max-params, --max-flops, --max-latency, --max-megabytes and --max-drop\n"
    )


def test_a_field_of_run_is_named_as_one() -> None:
    with pytest.raises(WrongCall, match=r"it is a field of Run: run=Run\(ancestry=\.\.\.\)$"):
        lg.expand("closed_form-mini", ancestry="bundled")
