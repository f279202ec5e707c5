"""Options derive from settings, and only options that were typed are returned as settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner

from learngene_zoo.cli.options import (
    find_model,
    make_budget_options,
    make_options,
    read_settings,
)
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.settings import Recipe

FIRST, SECOND = Recipe(epochs=2), Recipe(epochs=5)


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A record with one setting of every kind."""

    rounds: Annotated[int, "how often"] = 3
    rate: float = 0.5
    name: str = "a"
    place: Path = Path("here")
    loud: bool = False
    guide: Annotated[Literal["none", "soft"] | None, "which guide"] = None
    side: Literal["left", "right"] = "left"
    keep: tuple[int, ...] | None = None
    sides: tuple[Literal["left", "right"], ...] = ()
    limit: int | None = 7
    training: Recipe = FIRST
    tuning: Recipe = SECOND


def parse_line(words: list[str], settings: object = Toy()) -> object:
    """Return the settings that a command receives from a command line."""
    received: list[object] = []
    command = SettingsCommand(
        "toy",
        params=[*make_options(settings)],
        callback=lambda **_: received.append(read_settings(settings)),
    )
    command.main(words, standalone_mode=False)
    return received[0]


def usage_error(words: list[str]) -> str:
    with pytest.raises(click.UsageError) as caught:
        parse_line(words)
    return caught.value.format_message()


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ([], {}),
        (["--rounds", "4"], {"rounds": 4}),
        (["--rate", "1e-3"], {"rate": 1e-3}),
        (["--name", "b"], {"name": "b"}),
        (["--place", "there"], {"place": Path("there")}),
        (["--loud"], {"loud": True}),
        (["--no-loud"], {"loud": False}),
        (["--side", "right"], {"side": "right"}),
        (["--keep", "1,4,5"], {"keep": (1, 4, 5)}),
        (["--keep", "1", "--keep", "4,5"], {"keep": (1, 4, 5)}),
        (["--keep", "1, 4"], {"keep": (1, 4)}),
        (["--keep", "none"], {"keep": None}),
        (["--sides", "left,right"], {"sides": ("left", "right")}),
        (["--limit", "none"], {"limit": None}),
        (["--limit", "0"], {"limit": 0}),
        (["--guide", "none"], {"guide": "none"}),  # one of its choices
        (["--epochs", "9"], {"training": Recipe(epochs=9)}),
        (["--tuning-epochs", "9", "--tuning-clip", "1"], {"tuning": Recipe(epochs=9, clip=1.0)}),
    ],
)
def test_what_is_typed_is_what_changes(words: list[str], changes: dict[str, object]) -> None:
    assert parse_line(words) == replace(Toy(), **changes)  # type: ignore[arg-type]


def test_a_default_that_is_typed_overrides_another_presets_value() -> None:
    options = make_options(Toy())
    received: list[object] = []
    command = click.Command(
        "toy",
        params=[*options],
        callback=lambda **_: received.append(read_settings(Toy(rounds=99))),
    )
    command.main([], standalone_mode=False)
    command.main(["--rounds", "3"], standalone_mode=False)
    assert received == [Toy(rounds=99), Toy(rounds=3)]


def test_settings_that_only_fit_together_are_set_together() -> None:
    spec = ViTSpec(layers=2, width=96, heads=3)
    assert parse_line(["--heads", "5", "--width", "40"], spec) == replace(spec, width=40, heads=5)
    recipe = Recipe(batch_size=128, accumulate=2)
    assert parse_line(["--batch-size", "9", "--accumulate", "3"], recipe) == replace(
        recipe, batch_size=9, accumulate=3
    )


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--rounds", "x"], ["--rounds", "'x' is not an integer"]),
        (["--rounds", "1.5"], ["--rounds", "not an integer"]),
        (["--rounds", "none"], ["--rounds", "not an integer"]),
        (["--rate", "fast"], ["--rate", "not a number"]),
        (["--rate", "nan"], ["--rate", "not a finite number"]),
        (["--rate", "inf"], ["--rate", "not a finite number"]),
        (["--side", "up"], ["--side", "'left', 'right'"]),
        (["--sides", "left,up"], ["--sides", "'up'", "'left', 'right'"]),
        (["--keep", "1,x"], ["--keep", "'x' is not an integer"]),
        (["--rund", "1"], ["--rund", "--rounds"]),
        (["--lr", "-1"], ["--lr", "-1 is out of range; it must be above 0"]),
        (
            ["--drop-path", "1"],
            ["--drop-path", "1 is out of range; it must be at least 0 and below 1"],
        ),
    ],
)
def test_what_cannot_be_meant_is_named(words: list[str], names: list[str]) -> None:
    message = usage_error(words)
    assert all(name in message for name in names), message


def test_the_help_shows_choices_and_defaults_and_keeps_settings_apart() -> None:
    params = [*make_options(Toy()), click.Option(["--json"], is_flag=True, help="Print JSON.")]
    text = (
        CliRunner()
        .invoke(SettingsCommand("toy", params=params), ["--help"], terminal_width=200)
        .stdout
    )
    options, settings = text.split("\nSettings:")
    for words in (
        "[default: no]",
        "how often  [default: 3]",
        "--side [left|right]",
        "--keep INTEGER,...",
        "--loud / --no-loud",
    ):
        assert words in settings
    assert "--json" in options
    assert "--json" not in settings


def test_a_model_that_is_named_comes_before_those_at_the_usual_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "usual", "last"):
        Path(name).mkdir()
        (Path(name) / "config.json").write_text('{"architecture": "vit"}')
    assert find_model("mine", "usual", "last") == Path("mine")
    assert find_model(None, "none", "usual", "last") == Path("usual")
    with pytest.raises(WrongCall, match=r"there is no model at \./none or \./gone"):
        find_model(None, "none", "gone")
    with pytest.raises(WrongCall, match="there is no model at x; build one"):
        find_model("x", "usual")
    with pytest.raises(WrongCall, match=r"^there is no model at usaul; did you mean usual\?$"):
        find_model("usaul", "mine")
    with pytest.raises(
        WrongCall,
        match=(
            "timm:vit is a timm model, not a folder; create a folder with `lgzoo finetune timm:vit"
        ),
    ):
        find_model("timm:vit", "usual")
    with pytest.raises(
        WrongCall, match="no model at me/vit; on the Hub it would be hf-hub:me/vit or me/vit@main"
    ):
        find_model("me/vit", "usual")
    Path("model.onnx").touch()
    with pytest.raises(WrongCall, match=r"model\.onnx is a file; name a model's folder"):
        find_model("model.onnx", "usual")


def test_quantities_are_read_as_people_write_them() -> None:
    read = click.Command("read", params=[*make_budget_options()]).make_context(
        "read", ["--max-params", "20M", "--max-latency", "15ms"]
    )
    assert read.params == {"max_params": 20_000_000, "max_flops": None, "max_latency": 0.015}


def test_a_flag_that_says_no_has_a_plain_opposite() -> None:
    spec = ViTSpec(layers=2, width=32, heads=2)
    flags = {
        option.opts[0]: option.secondary_opts
        for option in make_options(spec)
        if isinstance(option, click.Option)
    }
    assert flags["--no-embed-class"] == ["--embed-class"]
    assert flags["--qk-norm"] == ["--no-qk-norm"]
