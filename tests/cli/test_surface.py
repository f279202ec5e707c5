"""Output of commands that compute little: help, lists, plans, completion. In this process."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import learngene_zoo as lg
from learngene_zoo.artifacts.shelf import find_cards_folder
from learngene_zoo.cli.main import GROUPS, TABLE, main
from learngene_zoo.cli.options import START_HERE
from learngene_zoo.families.family import count_cost
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.version import __version__

# LSAMD, Table 2: params and FLOPs of 5 to 15 layers as thop counts them, 100 classes, 224 x 224.
TABLE_2 = {
    5: (36_108_388, 7_094_059_008),
    6: (43_196_260, 8_489_613_312),
    7: (50_284_132, 9_885_167_616),
    8: (57_372_004, 11_280_721_920),
    9: (64_459_876, 12_676_276_224),
    10: (71_547_748, 14_071_830_528),
    11: (78_635_620, 15_467_384_832),
    12: (85_723_492, 16_862_939_136),
    13: (92_811_364, 18_258_493_440),
    14: (99_899_236, 19_654_047_744),
    15: (106_987_108, 21_049_602_048),
}
DEIT = ["--ancestry", "timm:deit_base_patch16_224", "--classes", "100"]


def call(*words: str) -> Result:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.stderr
    return result


def test_methods_of_a_family_are_listed() -> None:
    result = CliRunner().invoke(main, ["list", "methods", "--family", "eva", "--json"])
    rows = json.loads(result.stdout)
    assert rows
    assert all("eva" in row["families"] for row in rows)
    every = json.loads(CliRunner().invoke(main, ["list", "methods", "--json"]).stdout)
    assert {row["name"] for row in every if "eva" in row["families"]} == {r["name"] for r in rows}
    for words, message in (
        (["methods", "--family", "evva"], "no family named 'evva'; did you mean eva?"),
        (["--family", "eva"], "--family selects methods: lgzoo list methods --family NAME"),
        (
            ["methods", "--family", "vit", "--html", "y.html"],
            "--family and --html exclude each other; choose one",
        ),
    ):
        result = CliRunner().invoke(main, ["list", *words])
        assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")
    cut, whole = (call("list", "methods", "--family", "vit", *word) for word in ([], ["--all"]))
    assert cut.stderr.endswith(" rows left out; show them with --all\n")
    assert len(cut.stdout.splitlines()) < len(whole.stdout.splitlines())


def test_the_plan_of_lsamd_is_the_papers_table_2() -> None:
    rows = json.loads(
        call("plan", "lsamd", *DEIT, "--keep", "1,4,5,7,8", "--convention", "thop", "--json").stdout
    )
    assert {row["layers"]: (row["params"], row["flops"]) for row in rows} == TABLE_2
    assert [row["layers"] for row in rows] == sorted(TABLE_2)
    assert all((row["width"], row["heads"]) == (768, 12) for row in rows)
    assert sum(row["params"] for row in rows) == 787_025_228  # the paper's 787.03 M


def test_a_plan_without_keep_lists_every_depth_that_could_come() -> None:
    def depths(*words: str) -> list[int]:
        return [
            row["layers"]
            for row in json.loads(call("plan", "lsamd", *DEIT, *words, "--json").stdout)
        ]

    assert depths("--top", "none") == list(
        range(1, 16)
    )  # a search by threshold may keep any number of blocks
    assert depths("--threshold", "2") == list(range(1, 16))
    assert depths() == list(range(5, 16))  # the default preset keeps five


def test_a_plan_can_be_narrowed_and_read_by_people() -> None:
    rows = json.loads(
        call("plan", "lsamd", *DEIT, "--layers", "7", "--image-size", "64", "--json").stdout
    )
    assert len(rows) == 1
    assert rows[0]["flops"] < TABLE_2[7][1]
    text = call("plan", "lsamd", *DEIT, "--convention", "thop").stdout
    assert "50.28M" in text
    assert "9.89G" in text


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_command_has_help_with_an_example(name: str) -> None:
    text = call(name, "--help").stdout
    assert text.startswith(f"Usage: lgzoo {name}")
    assert f"lgzoo {name}" in text.partition("\n")[2], "an example"


def test_the_one_line_of_every_command_is_in_the_help() -> None:
    text = call("--help").stdout
    assert all(summary in text for _, summary in TABLE.values())
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(TABLE)
    assert call("-h").stdout == text


def test_the_table_names_commands_that_exist() -> None:
    context = click.Context(main)
    for name in TABLE:
        command = main.get_command(context, name)  # type: ignore[attr-defined]
        assert command is not None
        assert command.name == name


def test_the_version() -> None:
    assert call("--version").stdout == f"lgzoo {__version__}\n"


def test_bare_calls_show_the_help_as_a_wrong_call() -> None:
    for words in ([], ["extract"], ["plan"]):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 2
        assert "Usage: lgzoo" in result.stderr
        assert result.stdout == ""


def test_the_first_page_is_short_and_its_commands_are_right() -> None:
    lines = CliRunner().invoke(main, []).stderr.splitlines()
    assert len(lines) <= 20
    examples = [line.split()[1:] for line in lines if line.startswith("    lgzoo ")]
    assert [words[0] for words in examples] == ["shrink", "shrink", "extract", "expand", "finetune"]
    for words in examples:
        text = call(*words[: 1 + (words[0] == "extract")], "--help").stdout
        assert all(word in text for word in words if word.startswith("--"))


@pytest.mark.parametrize("name", ["finetune", "shrink"])
def test_the_help_says_which_defaults_depend_on_the_model_and_the_images(name: str) -> None:
    text = " ".join(call(name, "--help").stdout.split())
    assert "[default: 1; 0.75 on images if pretrained and wider than 96]" in text
    assert (
        "0.0001 if pretrained, times sqrt(N/64) in smaller batches of N; of pretrained text models"
        " 0.001, or 0.096/width of a wider ancestry model]" in text
    )
    assert "[default: 64; 8 to 32 if pretrained, on at most 256 images; of texts always 64]" in text
    assert "[default: 1; at least 5 steps if pretrained]" in text


@pytest.mark.parametrize("name", ["", *sorted(TABLE), "extract lsamd", "plan pool", "expand lsamd"])
def test_the_help_fits_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(main, [*name.split(), "--help"], terminal_width=80).stdout
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    "line",
    ["list", "list tasks --all", "list learngenes --all", "plan pool --all", "show lsamd-mini"],
)
def test_tables_fit_80_columns(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert [row for row in call(*line.split()).stdout.splitlines() if len(row) > 80] == []


def test_every_registered_method_has_its_own_commands() -> None:
    for verb in ("extract", "plan"):
        text = call(verb, "--help").stdout
        assert all(name in text for name in METHODS.references())
    text = call("extract", "lsamd", "--help").stdout
    titles = "\n(?:Settings|Training|Machine and output):"
    options, settings, training, running = re.split(titles, text)
    assert options.count("\nStart here:") == 1
    assert "--keep INTEGER,..." in settings
    assert "--epochs INTEGER" in training
    places = [options.index(f" {name}") for name in ("--task", "--out", "--ancestry")]
    assert places[:2] == sorted(places)[:2]  # what most calls need comes first
    for common in (
        "--force",
        "--resume",
        "--device",
        "--seed",
        "--precision",
        "--threads",
        "--workers",
        "--quiet",
        "--offline",
        "--json",
    ):
        assert common in running
    assert "--tracker" in running


def test_the_help_of_extract_begins_with_the_methods_to_start_with() -> None:
    text = call("extract", "--help").stdout
    start, others = text.split("\nStart here:")[1].split("\nOther methods:")
    assert [line.split()[0] for line in start.splitlines() if re.match("  [a-z]", line)] == list(
        START_HERE
    )
    assert set(START_HERE) < set(METHODS.references())
    others, shared = others.split("\nOptions of every method:")
    assert " closed_form" not in others
    about = "--help lists those of a method. [default: mini]"
    assert about in " ".join(shared.split())
    assert about in " ".join(call("plan", "--help").stdout.split())
    assert " [default: mini] --image-size" in " ".join(
        call("extract", "peg", "--help").stdout.split()
    )


@pytest.mark.parametrize("name", ["finetune", "shrink"])
def test_the_help_of_fit_states_one_default(name: str) -> None:
    text = " ".join(call(name, "--help").stdout.split("--fit")[1].split("  --")[0].split())
    assert text.endswith(
        "(none: stretch if a model that crops gets a new head, else as the model is configured)"
    )


@pytest.mark.parametrize("name", ["convert", "export", "publish", "fetch"])
def test_progress_and_machine_come_last_in_the_help(name: str) -> None:
    running = call(name, "--help").stdout.split("\nMachine and output:")[1]
    assert all(option in running for option in ("--quiet", "--offline", "--json"))


@pytest.mark.parametrize("name", sorted(TABLE))
def test_no_help_has_bounds_that_nobody_reaches_or_an_option_without_a_text(name: str) -> None:
    text = call(name, "--help").stdout
    assert "9223372036854775807" not in text
    assert "<=x" not in text
    command = main.get_command(click.Context(main), name)  # type: ignore[attr-defined]
    assert all(option.help for option in command.params if isinstance(option, click.Option))


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("export", "--tracker --seed --precision"),
        ("expand lsamd-mini", "--tracker --precision"),
        ("evaluate", "--tracker"),
        ("compare a b", "--tracker --resume --force"),
        ("recommend --task digits", "--tracker --resume --force"),
        ("predict model x.png", "--tracker --resume --workers --seed"),
    ],
)
def test_an_option_that_means_nothing_for_a_verb_is_refused(line: str, options: str) -> None:
    text = call(line.split()[0], "--help").stdout
    for option in options.split():
        assert f" {option}" not in text
        assert f"no option named {option}; " in call_refused(*line.split(), option, "1")


@pytest.mark.parametrize("line", ["expand lsamd-mini", "evaluate", "export"])
def test_the_help_of_a_command_without_a_run_promises_none(line: str) -> None:
    text = call(*line.split(), "--help").stdout
    assert "interrupted run" not in text
    assert re.search(r"--resume +(Accept|Replace) an existing", text)


def test_lists_are_flat() -> None:
    methods = json.loads(call("list", "methods", "--json").stdout)
    assert {row["name"] for row in methods} == set(METHODS.references())
    tasks = json.loads(call("list", "tasks", "--json").stdout)
    assert "digits" in {row["name"] for row in tasks}
    assert all(isinstance(row["classes"], int) for row in tasks)
    everything = json.loads(call("list", "--json").stdout)
    assert {row["kind"] for row in everything} >= {"method", "task"}
    for row in everything:
        assert not any(isinstance(value, dict) for value in row.values())
    assert all(
        name in call("list").stdout
        for name in ("methods: ", "learngenes: ", "tasks: ", "closed_form")
    )
    assert all(name in call("list", "--all").stdout for name in ("lsamd", "tal", "digits", "timm:"))


def test_a_task_with_a_note_shows_it() -> None:
    assert (
        "test labels are withheld"
        in json.loads(call("show", "tiny-imagenet", "--json").stdout)["notes"][0]
    )
    assert "notes" in call("show", "tiny-imagenet").stdout
    assert json.loads(call("show", "digits", "--json").stdout)["notes"] == []
    assert "notes" not in call("show", "digits").stdout


def test_show_a_task_and_a_method() -> None:
    assert json.loads(call("show", "digits", "--json").stdout)["classes"] == 10
    assert "train" in call("show", "digits").stdout


def test_the_demo_prints_its_table_and_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"layers": 6, "params": 700_000, "flops": 9_000_000}
    line |= {
        "descendant": 0.913,
        "shuffled": 0.7,
        "stem": 0.5,
        "stem_fan_in": 0.8,
        "scratch_timm": 0.6,
        "scratch_fan_in": 0.9,
    }
    line |= {"over_scratch": 0.013, "over_scratch_low": -0.01, "over_scratch_high": 0.03}
    line |= {"over_stem": 0.113, "over_stem_low": 0.1, "over_stem_high": 0.13}
    line |= {"over_shuffled": 0.213, "over_shuffled_low": 0.2, "over_shuffled_high": 0.23}
    monkeypatch.setattr("learngene_zoo.cli.demo._measure_rows", lambda job, full, workers: [])
    monkeypatch.setattr("learngene_zoo.bench.demo.demo_rows", lambda rows: [line])
    monkeypatch.setenv("COLUMNS", "120")
    result = call("demo", "-o", "my story")
    for words in (
        "91.3",
        "scratch fan_in",
        "700.00K",
        "+1.3 points over the stronger scratch",
        "within its interval",
        "report.html",
    ):
        assert words in result.stdout
    advice = "next: lgzoo expand 'my story/learngene' --layers 7"
    assert result.stderr.splitlines()[-1] == advice
    assert json.loads(call("demo", "--json", "-q").stdout) == [{**line, "path": "demo"}]


@pytest.mark.slow
def test_after_an_extraction_of_one_depth_a_smaller_size_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [said] = [
        line.removeprefix("next: lgzoo ").partition("   (")[0].split()
        for line in call("extract", "pruning", "--images", "4").stderr.splitlines()
        if line.startswith("next: ")
    ]
    assert said[:2] == ["expand", "--max-params"]
    assert call(*said).exit_code == 0
    params = lg.load("descendant").cost().params
    assert params <= int(said[2]) < count_cost(read_ancestry_spec("bundled")).params


def test_the_next_command_can_be_pasted_for_a_folder_that_is_named_like_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    advice = call("extract", "first_k", "-o", "./-y").stderr.splitlines()[-1]
    assert advice.startswith("next: lgzoo expand ./-y --layers 7")
    words = shlex.split(advice.removeprefix("next: lgzoo ").partition("   (")[0])
    built = call(*words, "-o", "./-z")
    assert (built.exit_code, built.stderr.splitlines()[-1]) == (0, "next: lgzoo finetune ./-z")


@pytest.mark.parametrize("verb", ["extract", "plan"])
def test_the_help_without_a_method_shows_the_common_options(verb: str) -> None:
    text = call(verb, "--help").stdout
    shown = ("--ancestry", "--preset", "--image-size", "--json", "--offline")
    assert all(
        option in text
        for option in (*shown, *(("--task",) if verb == "extract" else ("--max-params",)))
    )
    assert "--routing" not in text


def test_a_folder_that_is_taken_for_a_task_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clothes").mkdir()
    for line, code in (
        ("show clothes", 1),
        ("train --task clothes", 2),
        ("doctor --task clothes", 2),
    ):
        result = CliRunner().invoke(main, line.split())
        assert (result.exit_code, "folder:clothes" in result.stderr) == (code, True), line
    for line in ("show zzqq", "train --task zzqq"):
        result = CliRunner().invoke(main, line.split())
        assert (result.exit_code, "lgzoo list" in result.stderr) == (2, True)
        assert "imagenet-1k" not in result.stderr  # nor any other of forty names


def test_a_depth_far_beyond_the_ancestrys_gets_a_remark(tmp_path: Path) -> None:
    for layers, told in ((12, False), (40, True)):
        result = call("expand", "lsamd", "--layers", str(layers), "-o", str(tmp_path / str(layers)))
        assert ("note: 40 layers come from an ancestry model of 12" in result.stderr) == told


def test_a_budget_says_what_it_has_led_to(tmp_path: Path) -> None:
    result = call("expand", "lsamd", "--max-params", "900K", "-o", str(tmp_path / "fitting"))
    assert result.stderr.splitlines()[0] == "6 layers of width 96, 816.23K parameters, 12.14M FLOPs"
    result = call("expand", "lsamd", "--max-params", "900K", "-q", "-o", str(tmp_path / "quiet"))
    assert "parameters" not in result.stderr


def test_a_picture_is_named_as_its_learngene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(find_cards_folder() / "lsamd-mini", tmp_path / "mine")
    monkeypatch.setattr("learngene_zoo.lifecycle.plot", lambda learngene, path, **_: path)
    assert call("plot", "mine").stdout == "mine.png\n"


def test_completion_scripts_and_what_they_ask_for() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_LGZOO_COMPLETE" in call("completion", shell).stdout
    assert complete("lgzoo ex") == ["extract", "expand", "export"]
    assert "lsamd" in complete("lgzoo extract ls")
    assert "--routing" in complete("lgzoo extract lsamd --ro")
    assert complete("lgzoo extract lsamd --routing i") == ["image"]
    for verb in ("extract lsamd", "expand", "finetune", "evaluate", "train", "bench", "doctor"):
        assert complete(f"lgzoo {verb} --task dig") == ["digits"], verb
    assert complete("lgzoo extract lsamd --preset s") == ["smoke"]
    assert complete("lgzoo evaluate --device cu") == ["cuda"]
    assert "lsamd-mini" in complete("lgzoo expand lsa")
    assert "--layers" in complete("lgzoo expand --la")
    assert complete("lgzoo show lsamd")[:3] == ["lsamd", "lsamd12", "lsamd-mini"]
    assert complete("lgzoo show dig")[0] == "digits"
    assert "lsamd-mini" in complete("lgzoo recommend lsa")
    assert complete("lgzoo recommend --task dig") == ["digits"]
    assert complete("lgzoo list me") == ["methods"]


def test_the_help_costs_click_and_nothing_else() -> None:
    code = (
        "import sys; from learngene_zoo.cli.main import main; main(['--help'],"
        " standalone_mode=False)"
    )
    watch = "import atexit, sys; atexit.register(lambda: print('LOADED', *sys.modules));"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.run(
        [sys.executable, "-c", watch + code], env=environment, capture_output=True, text=True
    )
    loaded = set(process.stdout.partition("LOADED")[2].split())
    assert "click" in loaded
    assert not loaded & {
        "rich",
        "torch",
        "timm",
        "numpy",
        "datasets",
        "importlib.metadata",
        "learngene_zoo.lifecycle",
    }


def complete(line: str) -> list[str]:
    """Return the shell's completions for the last word of a command line."""
    environment = {
        "_LGZOO_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    result = CliRunner(env=environment).invoke(main, [], prog_name="lgzoo")
    return [row.partition(",")[2] for row in result.stdout.splitlines()]


def test_the_options_of_an_expander_come_from_the_learngene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.artifacts.records import LearngeneConfig
    from learngene_zoo.families.vit.spec import ViTSpec

    monkeypatch.chdir(tmp_path)
    config = LearngeneConfig(
        method="scratch", spec=ViTSpec(layers=2, width=16, heads=2, image_size=16, patch_size=8)
    )
    Learngene(config=config, state={}).save(Path("mine"))
    assert "--init" not in call("expand", "--help").stdout
    assert "--init [timm|fan_in]" in call("expand", "mine", "--help").stdout
    for line in (
        "expand mine --init fan_in --layers 1 -o a",
        "expand --init fan_in mine --layers 1 -o b",
        "expand --layers 1 --init=fan_in mine -o c",
        "expand --layers 1 -o d mine --init fan_in",
    ):
        call(*line.split())
        folder = Path(line.split()[line.split().index("-o") + 1])
        assert json.loads((folder / "config.json").read_text())["learngene"]["init"] == "fan_in"


def call_refused(*words: str) -> str:
    result = CliRunner().invoke(main, list(words))
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    return result.stderr


def test_a_size_that_a_method_cannot_change_is_refused_wherever_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from learngene_zoo.testing import make_tiny_ancestry

    monkeypatch.chdir(tmp_path)
    learngene = with_settings(METHODS.load("lsamd").extractor, {"keep": (1, 3)})(
        [make_tiny_ancestry()], [], Run()
    )
    learngene.with_config(method="lsamd").save(Path("learngene"))
    says = (
        "mlp_ratio is 2.0, but all descendants of this learngene have mlp_ratio 4.0; sizes that can"
        " be chosen: layers, classes"
    )
    assert says in call_refused("plan", "lsamd", *DEIT, "--mlp-ratio", "2")
    assert says in call_refused("expand", "--layers", "2", "--mlp-ratio", "2")
    assert says in call_refused("expand", "--mlp-ratio", "2", "--max-params", "20M")
    assert "heads is 4" in call_refused("expand", "--heads", "4", "--max-flops", "1G")
    call("expand", "--layers", "2", "--mlp-ratio", "4", "--heads", "2")


def test_a_size_that_a_method_can_change_is_built_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from learngene_zoo.testing import make_tiny_ancestry

    monkeypatch.chdir(tmp_path)
    learngene = METHODS.load("scratch").extractor([make_tiny_ancestry()], [], Run())
    learngene.with_config(method="scratch").save(Path("learngene"))
    call("expand", "--mlp-ratio", "2", "--width", "48")
    row = json.loads(call("show", "./descendant", "--json").stdout)
    assert (row["mlp_ratio"], row["width"], row["heads"]) == (2.0, 48, 2)


def test_a_method_that_two_packages_claim_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("zoo_left", "zoo_right"):
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{METHODS.group}]\ncontested = {package}:METHOD\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = CliRunner().invoke(main, ["extract", "contested"])
    assert result.exit_code == 1
    assert "2 packages claim the method 'contested'" in result.stderr
    listed = call("list", "methods", "--all")
    assert listed.stderr.count("note: method contested of zoo_") == 1
    assert "lsamd" in listed.stdout
    assert re.search(r"contested +\(broken: see lgzoo doctor\)", call("extract", "--help").stdout)
