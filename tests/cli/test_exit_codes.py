"""The table of exit codes in docs/cli.md: each kind of missing input, with the error line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.cli.main import main
from learngene_zoo.families.vit.spec import ViTSpec

SPEC = ViTSpec(layers=2, width=16, heads=2, classes=2, image_size=16, patch_size=8)
LINES = {
    "extract lsmd": (2, "no method named 'lsmd'; did you mean lsamd?"),
    "exract lsamd": (2, "no command named 'exract'; did you mean extract?"),
    "finetune model --epocs 3": (2, "no option named --epocs; did you mean --epochs?"),
    "extract first_k --depth 4": (
        2,
        "no option named --depth; sizes are chosen afterwards: lgzoo expand --depth ...",
    ),
    "expand lsamd-mini --in-chans 3": (2, "no option named --in-chans; see lgzoo expand --help"),
    "extract lsamd --preset papr -o new": (
        2,
        "no preset of lsamd named 'papr'; did you mean paper?",
    ),
    "extract peg --ancestry ancestry-words": (
        2,
        "peg does not support text models, only image models; methods that do: lgzoo list methods"
        " --family gpt2",
    ),
    "plan model": (2, "no method named 'model'; for the folder of that name: lgzoo show model"),
    "expand scratch": (
        2,
        "the shelf has no learngene of the method scratch; make one: lgzoo extract scratch",
    ),
    "expand lsamd-mni": (2, "no folder or learngene named 'lsamd-mni'; did you mean lsamd-mini?"),
    "show sings": (2, "no method, learngene, task or suite named 'sings'; did you mean signs?"),
    "show none.csv": (2, "there is no file none.csv; give a file that exists, as csv:FILE"),
    "list method": (2, "no list named 'method'; did you mean methods?"),
    "evaluate model --device gpu": (2, "no device named 'gpu'; known: auto, cpu, cuda, mps"),
    "evaluate model --threads 0": (
        2,
        (
            "invalid value for '--threads': 0 is out of range; it must be at least 1 and at most"
            " 1024; see lgzoo evaluate --help"
        ),
    ),
    "evaluate model --probe ridge --shots 1,0": (
        2,
        (
            "invalid value for '--shots': expected numbers of images of each class, e.g. 1,5,10,"
            " or all; got '0' in '1,0'; see lgzoo evaluate --help"
        ),
    ),
    "finetune model --seed x": (
        2,
        "invalid value for '--seed': 'x' is not an integer; see lgzoo finetune --help",
    ),
    "plan --ancestry x": (
        2,
        (
            "name the method before its options, for example: lgzoo plan closed_form --ancestry x;"
            " see lgzoo plan --help"
        ),
    ),
    "extract --image-size 112 first_k": (
        2,
        (
            "name the method before its options, for example: lgzoo extract first_k --image-size"
            " 112; see lgzoo extract --help"
        ),
    ),
    "extract -o first_k first_k": (
        2,
        (
            "name the method before its options, for example: lgzoo extract first_k -o first_k; see"
            " lgzoo extract --help"
        ),
    ),
    "prune model": (
        2,
        "no command named 'prune'; the method pruning does this: lgzoo extract pruning, then lgzoo"
        " expand",
    ),
    "evaluate model --task digits": (
        2,
        (
            "the model model has 2 classes and digits has 10; train it first: lgzoo finetune model"
            " -o NEW --task digits"
        ),
    ),
    "expand closed_form-mini --head 3": (
        2,
        "no option named --head; did you mean --heads or --head-dim?",
    ),
    "evaluate model --probe": (
        2,
        "option '--probe' requires an argument: knn, ridge; see lgzoo evaluate --help",
    ),
    "plan closed_form --layers 99": (
        2,
        "closed_form lists no size of 99 layers; its sizes have 1 to 12 layers",
    ),
    "plan closed_form --embed-dim=50 --img-size 64": (
        2,
        "closed_form lists no size of width 50; leave out width to see all sizes",
    ),
    "plan closed_form --width 50 --depth 3": (
        2,
        "closed_form lists no size of layers 3 and width 50; leave out layers, width to see all "
        "sizes",
    ),
    "extract closed_form --ancestry bundeld -o new": (
        2,
        "no file or folder bundeld; did you mean bundled?",
    ),
    "extract closed_form deit": (
        2,
        "too many arguments: deit; name the ancestry model with --ancestry deit; see lgzoo extract"
        " closed_form --help",
    ),
    "finetune model model": (2, "too many arguments: model; see lgzoo finetune --help"),
    "shrink --ancestry deit": (
        2,
        "no option named --ancestry; the model is an argument: lgzoo shrink MODEL",
    ),
    "export model --tracker x": (2, "no option named --tracker; see lgzoo export --help"),
    "compare model": (2, "missing argument 'SECOND'; see lgzoo compare --help"),
    "evaluate nowhere": (
        2,
        "there is no model at nowhere; build one with `lgzoo expand --layers 7 -o nowhere`",
    ),
    "finetune model --task folder:nowhere -o new": (1, "there is no folder nowhere; "),
    "extract first_k --ancestry nowhere -o new": (
        2,
        "no file or folder nowhere to open as an ancestry model",
    ),
    "extract first_k --ancestry deit_bas_patch16_224 -o new": (
        2,
        "no file or folder deit_bas_patch16_224; did you mean timm:deit_base_patch16_224?",
    ),
    "expand -o model": (
        1,
        (
            "model already exists; choose another path with -o, or replace it with --force; "
            "for example: lgzoo expand -o model-2"
        ),
    ),
    "plan first_k --ancestry timm:nosuchmodel": (
        2,
        "no timm model named 'nosuchmodel'; `lgzoo list ancestries` shows well-known ones",
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_the_line_and_the_code(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assemble(SPEC, {}, seed=0).save(Path("model"))
    if line.startswith("expand -o"):
        assert CliRunner().invoke(main, ["extract", "first_k"]).exit_code == 0
    code, message = LINES[line]
    result = CliRunner().invoke(main, line.split())
    assert result.stderr.startswith(f"error: {message}"), result.stderr
    assert message.endswith("; ") or result.stderr == f"error: {message}\n"
    assert (result.exit_code, result.stdout) == (code, "")
