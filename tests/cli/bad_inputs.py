"""Command lines that must fail, each with a change of the folder, the exit code and words of the
error.

`CASES` are written by hand, grouped by cause; `outside` derives further ones from the bounds and
kinds of settings.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bad_folders import (
    Change,
    both,
    cut,
    edit,
    folder,
    foreign,
    poison,
    remove,
    reshape,
    retensor,
    write,
    write_unfinished_run,
)  # fmt: skip

WRONG, FAILED = 2, 1
BRIEF = "--epochs 1 --images 8 --batch-size 4"


@dataclass(frozen=True)
class Case:
    """`leaves` lists files that a call may add: the folder of a run that had begun."""

    line: str
    code: int
    words: tuple[str, ...]
    change: Change | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    leaves: str = ""

    @property
    def name(self) -> str:
        """The id for pytest's output."""
        return f"{self.line[:60]} -> {self.words[0][:40]}"


WEIGHTS, CONFIG = "learngene/model.safetensors", "learngene/config.json"
MODEL, MODEL_CONFIG = "model/model.safetensors", "model/config.json"
PICKLE = pickle.dumps({"blocks.0.norm1.weight": [1.0]})
LYING_HEADER = struct.pack("<Q", 2**40) + b"{}"

CALLS = [
    Case("publish learngene me/x --tag", WRONG, ("--tag", "see lgzoo publish --help")),
    Case("expand learngene --layers", WRONG, ("--layers", "see lgzoo expand --help")),
    Case("extract lsamd --keep", WRONG, ("--keep", "see lgzoo extract lsamd --help")),
    Case("exract lsamd", WRONG, ("no command named 'exract'", "did you mean extract?")),
    Case("extract lsmd", WRONG, ("no method named 'lsmd'", "did you mean lsamd?")),
    Case("plan lsmd", WRONG, ("no method named 'lsmd'", "did you mean lsamd?")),
    Case("show digit", WRONG, ("'digit'", "did you mean digits?")),
    Case("show ./nowhere", WRONG, ("nowhere", "lgzoo extract")),
    Case("list modules", WRONG, ("'modules'", "known: ancestries, learngenes, methods, tasks")),
    Case("completion tcsh", WRONG, ("'tcsh'", "'bash', 'zsh', 'fish'")),
    Case(
        "extract lsamd --rooting batch",
        WRONG,
        ("no option named --rooting", "did you mean --routing?"),
    ),
    Case(
        "expand learngene --laers 2", WRONG, ("no option named --laers", "did you mean --layers?")
    ),
    Case(
        "expand learngene --priorty x",
        WRONG,
        ("no option named --priorty", "did you mean --priority?"),
    ),
    Case("expand learngene --priority up", WRONG, ("--priority", "'up'", "'last-middle-first'")),
    Case(
        "extract lsamd --preset papper",
        WRONG,
        ("no preset of lsamd named 'papper'", "did you mean paper?"),
    ),
    Case(
        "extract lsamd --ancestry ancestry --task obects -o new",
        WRONG,
        ("'obects'", "did you mean objects? (your own data: "),
    ),
    Case(
        "extract lsamd --ancestry ancestry --task folder:photos --task folder:photos -o new",
        WRONG,
        ("photos is given twice", "once"),
    ),
    Case(
        "extract scratch --ancestry timm:deit_bse_patch16_224 -o new",
        WRONG,
        ("deit_bse_patch16_224", "did you mean"),
    ),
    Case("extract scratch --ancestry ./nowhere -o new", WRONG, ("nowhere",)),
    Case(
        "plan lsamd --ancestry timm:resnet18", WRONG, ("resnet18", "not supported; supported are")
    ),
    Case(
        "extract lsamd --ancestry ancestry --ancestry ancestry", WRONG, ("lsamd takes 1", "not 2")
    ),
    Case("evaluate model --task nonsense", WRONG, ("'nonsense'",)),
    Case(
        "evaluate timm:deit_tyny --task folder:photos", WRONG, ("no timm model named 'deit_tyny'",)
    ),
    Case(
        "evaluate timm:resnet10t --task folder:photos --offline", FAILED, ("resnet10t", "offline")
    ),
    Case("compare model", WRONG, ("missing argument 'SECOND'",)),
    Case("compare model nowhere --task folder:photos", WRONG, ("no model at nowhere",)),
    Case("compare model learngene --task folder:photos", WRONG, ("is a learngene",)),
    Case("predict model", WRONG, ("missing argument 'IMAGES...'",)),
    Case("predict model nothing.png", FAILED, ("nothing.png",)),
    Case("predict photos/red/0.png model", WRONG, ("model is a model", "predict model photos")),
    Case("shrink folder:photos --max-params 9K -o new", WRONG, ("is data, not a model", "--task")),
    Case("predict model scratched", FAILED, ("no images in",)),
    Case("finetune model --task folder:photos --keep worst", WRONG, ("--keep", "worst")),
    Case("finetune model --task folder:photos --patience 0", WRONG, ("--patience", "at least 1")),
    Case("heal model", WRONG, ("missing option '--images'", "see lgzoo heal --help")),
    Case("heal nowhere --images folder:photos", WRONG, ("no model at nowhere",)),
    Case("heal learngene --images folder:photos", WRONG, ("is a learngene",)),
    Case("heal model --images photos", WRONG, ("write folder:photos",)),
    Case("heal model --images folder:nowhere --teacher ancestry", FAILED, ("no folder nowhere",)),
    Case(
        "heal model --images folder:empty --teacher ancestry",
        FAILED,
        ("empty contains no files",),
        folder("empty"),
    ),
    Case(
        "heal model --images folder:photos/red --teacher ancestry",
        FAILED,
        ("folder:photos/red has", "at least 20"),
    ),
    Case("heal model --images folder:photos --maps new", WRONG, ("--maps", "'learnt'")),
    Case("heal model --images folder:photos --label-smoothing 0.1", WRONG, ("--label-smoothing",)),
    Case("heal model --images folder:photos", WRONG, ("records no ancestry model", "--teacher")),
    Case("heal model --images folder:photos --teacher nowhere", WRONG, ("nowhere",)),
    Case("shrink ancestry --task folder:photos", WRONG, ("no bound is given", "--max-params")),
    Case("shrink ancestry --max-params 9K", WRONG, ("no images are given", "--images")),
    Case("shrink nowhere --task folder:photos --max-params 9K", WRONG, ("nowhere",)),
    Case("shrink ancestry --task photos --max-params 9K", WRONG, ("write folder:photos",)),
    Case("shrink ancestry --task folder:photos --max-params 9", WRONG, ("the smallest has",)),
    Case("shrink ancestry --task folder:photos --max-params 9M", WRONG, ("is within the budget",)),
    Case("shrink ancestry --task scenes --max-params 9K", WRONG, ("a class for every pixel",)),
    Case(
        "shrink ancestry --images folder:photos --max-drop 1", WRONG, ("--max-drop", "need labels")
    ),
    Case(
        "shrink ancestry --task folder:photos --max-params 9K --candidates 1 --try 3",
        WRONG,
        ("3 candidates", "--try", "at most 1", "--candidates"),
    ),
    Case("shrink ancestry --task folder:photos --max-megabytes 0", WRONG, ("--max-megabytes",)),
    Case("evaluate model --split holdout", WRONG, ("--split", "'holdout'", "'test'")),
    Case("evaluate model --task folder:photos --device tpu", WRONG, ("tpu", "cpu")),
    Case("evaluate model --precision fp8", WRONG, ("--precision", "'fp8'", "'bf16'")),
    Case("plan lsamd --convention mine", WRONG, ("--convention", "'mine'", "'thop'")),
    Case(
        "plan lsamd --ancestry ancestry --layers 99",
        WRONG,
        ("lsamd lists no size of 99 layers",),
    ),
    Case("expand learngene --seed -1", WRONG, ("--seed", "-1")),
    Case("expand learngene --threads 0", WRONG, ("--threads", "0")),
    Case("expand learngene extra", WRONG, ("extra", "--help")),
    Case("expand learngene --layers seven", WRONG, ("--layers", "'seven'")),
    Case("expand learngene --layers 0", WRONG, ("--layers", "0")),
    Case("extract lsamd --top 0", WRONG, ("'--top': 0 is out of range", "at least 1")),
    Case(
        "extract lsamd --keep 9 --ancestry ancestry --task folder:photos -o new",
        WRONG,
        ("block 9", "1 to 3"),
    ),
    Case("finetune model --lr -1", WRONG, ("'--lr': -1 is out of range", "above 0")),
    Case("finetune model --batch-size 10 --accumulate 3", WRONG, ("accumulate is 3", "10")),
    Case(
        "finetune model --drop-path 1.5",
        WRONG,
        ("'--drop-path': 1.5 is out of range", "at least 0 and below 1"),
    ),
    Case("finetune model --epochs many", WRONG, ("--epochs", "'many'")),
    Case(
        f"finetune model --task folder:photos --tracker nosuch {BRIEF}",
        WRONG,
        ("nosuch", "tensorboard"),
    ),
]

SIZES = [
    Case(
        "train --task folder:photos --width 30 --heads 4",
        WRONG,
        ("4 heads do not divide a width of 30", "try 3"),
    ),
    Case("train --task folder:photos --image-size 33 -o new", WRONG, ("patches of 8", "33")),
    Case("train --task folder:photos --layers 9999", WRONG, ("layers is 9999", "512")),
    Case("expand scratched --heads 3", WRONG, ("3 heads do not divide a width of 32", "try 2")),
    Case("expand scratched --layers 513", WRONG, ("513 is out of range", "at most 512")),
    Case("expand learngene --layers 1", WRONG, ("1", "2")),
    Case(
        "expand learngene --width 64",
        WRONG,
        (
            "width is 64",
            "all descendants of this learngene have width 32",
            "layers, classes, image_size",
        ),
    ),
    Case("expand learngene --max-params 1K", WRONG, ("1K parameters", "smallest", "2 layers")),
    Case("expand learngene --max-flops 10 --max-params 20M", WRONG, ("10 FLOPs", "smallest")),
    Case(
        "expand learngene --max-latency 1us", WRONG, ("at most 1us", "smallest", "on this machine")
    ),
    Case("expand learngene --max-params 20Q", WRONG, ("'20Q'", "20M")),
    Case("expand learngene --max-params=-3M", WRONG, ("'-3M'", "20M")),
    Case("expand learngene --max-flops nan", WRONG, ("'nan'", "3G")),
    Case("expand learngene --max-latency 15", WRONG, ("'15'", "15ms")),
]

PLACES = [
    Case("expand", WRONG, ("no learngene at ./learngene", "lgzoo extract"), remove("learngene")),
    Case("finetune", WRONG, ("no model at ./descendant", "lgzoo expand")),
    Case("evaluate", WRONG, ("no model at ./finetuned or ./descendant", "lgzoo expand")),
    Case(
        "expand model --layers 2", FAILED, ("model is a model, not a learngene", "lgzoo finetune")
    ),
    Case(
        "finetune learngene",
        WRONG,
        ("learngene is a learngene, not a model", "lgzoo expand learngene"),
    ),
    Case(
        "evaluate learngene",
        FAILED,
        ("transformers' layout", "lgzoo extract closed_form --ancestry", "--probe ridge"),
        lambda folder: (folder / CONFIG).write_text('{"model_type": "swin"}'),
    ),
    Case(
        "expand learngene --layers 2",
        FAILED,
        ("transformers' layout", "--ancestry learngene"),
        lambda folder: (folder / CONFIG).write_text('{"model_type": "dinov2"}'),
    ),
    Case(
        "evaluate learngene",
        WRONG,
        ("learngene is a learngene, not a model", "lgzoo expand learngene"),
    ),
    Case("extract scratch --ancestry learngene", FAILED, ("learngene",)),
    Case("expand learngene --layers 2 -o model", FAILED, ("model already exists", "--force")),
    Case(
        "extract scratch --ancestry ancestry -o learngene",
        FAILED,
        ("learngene already exists", "--force"),
    ),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o learngene",
        FAILED,
        ("learngene already exists", "--force"),
    ),
    Case(
        "train --task folder:photos -o learngene", FAILED, ("learngene already exists", "--force")
    ),
    Case(
        "evaluate model --task folder:photos -o model/config.json",
        FAILED,
        ("config.json already exists", "--force"),
    ),
    Case(
        "plot learngene -o notes.png",
        FAILED,
        ("notes.png already exists", "--force"),
        write("notes.png", "mine"),
    ),
    Case("plot learngene -o notes.jpg", WRONG, ("notes.jpg", ".png or .svg")),
    Case("plot scratched -o new.png", WRONG, ("scratch cannot draw its learngenes",)),
    Case(
        "expand learngene --layers 2 -o notes --force",
        FAILED,
        ("notes is a file", "-o"),
        write("notes", "mine"),
    ),
    Case(
        "expand learngene --layers 2 -o notes/new",
        FAILED,
        ("notes is a file", "-o"),
        write("notes", "mine"),
    ),
    Case("expand learngene --layers 2 -o . --force", FAILED, ("the current folder", "-o")),
    Case(
        "expand learngene --layers 2 -o learngene --force",
        FAILED,
        ("learngene is also an input of this command", "-o"),
    ),
    Case(
        "expand ./learngene --layers 2 -o x/../learngene --force",
        FAILED,
        ("also an input of this command", "-o"),
    ),
    Case(
        "extract scratch --ancestry ancestry -o ancestry --force",
        FAILED,
        ("also an input of this command", "-o"),
    ),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o new",
        FAILED,
        ("unfinished run is in new.run", "--resume", "--force"),
        write_unfinished_run("new.run"),
    ),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o new --resume",
        FAILED,
        ("started with other settings", "verb: x then, finetune now"),
        write_unfinished_run("new.run"),
    ),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o new --force",
        FAILED,
        (
            "holds notes.txt, and no valid .lgzoo file that says that it is the folder of a run",
            "-o",
        ),
        write("new.run/notes.txt", "mine"),
    ),
]

FILES = [
    Case("expand learngene --layers 2", FAILED, ("model.safetensors",), cut(WEIGHTS, 0.5)),
    Case("expand learngene --layers 2", FAILED, ("model.safetensors",), cut(WEIGHTS, 0.0001)),
    Case(
        "expand learngene --layers 2",
        FAILED,
        ("model.safetensors", "safetensors file"),
        write(WEIGHTS, b"x" * 4096),
    ),
    Case(
        "expand learngene --layers 2",
        FAILED,
        ("model.safetensors", "safetensors file"),
        write(WEIGHTS, LYING_HEADER),
    ),
    Case(
        "expand learngene --layers 2",
        FAILED,
        ("model.safetensors", "safetensors file"),
        write(WEIGHTS, PICKLE),
    ),
    Case(
        "expand learngene --layers 2",
        FAILED,
        ("model.safetensors does not exist",),
        remove(WEIGHTS),
    ),
    Case(
        "expand learngene --layers 2",
        FAILED,
        ("qkv.weight", "not finite"),
        retensor(WEIGHTS, poison),
    ),
    Case("expand learngene --layers 2", FAILED, ("norm1.weight",), retensor(WEIGHTS, reshape)),
    Case("expand learngene --layers 2", FAILED, ("lacks the tensor",), retensor(WEIGHTS, foreign)),
    Case("evaluate model --task folder:photos", FAILED, ("model.safetensors",), cut(MODEL, 0.7)),
    Case("evaluate model --task folder:photos", FAILED, ("not finite",), retensor(MODEL, poison)),
    Case(
        "evaluate model --task folder:photos", FAILED, ("norm1.weight",), retensor(MODEL, reshape)
    ),
    Case(
        "evaluate model --task folder:photos",
        FAILED,
        ("model.safetensors",),
        retensor(MODEL, foreign),
    ),
    Case(
        "evaluate model --task folder:photos", FAILED, ("model.safetensors",), write(MODEL, PICKLE)
    ),
    Case(
        "extract scratch --ancestry weights.pth -o new",
        FAILED,
        ("weights.pth", "safetensors"),
        write("weights.pth", PICKLE),
    ),
    Case(
        "extract scratch --ancestry ancestry -o new",
        FAILED,
        ("model.safetensors",),
        cut("ancestry/model.safetensors", 0.5),
    ),
    Case(
        "extract scratch --ancestry ancestry -o new",
        FAILED,
        ("ancestry", "safetensors"),
        both(remove("ancestry/model.safetensors"), write("ancestry/pytorch_model.bin", PICKLE)),
    ),
]

CONFIGS = [
    Case("expand learngene", FAILED, ("config.json does not exist",), remove(CONFIG)),
    Case("show learngene", FAILED, ("format is 99", "format 1"), edit(CONFIG, format=99)),
    Case("show learngene", FAILED, ("format is None", "format 1"), edit(CONFIG, format=...)),
    Case(
        "expand learngene",
        FAILED,
        ("layers is 1000000000", "512"),
        edit(CONFIG, spec__layers=10**9),
    ),
    Case(
        "expand learngene", FAILED, ("classes is 10000000000",), edit(CONFIG, spec__classes=10**10)
    ),
    Case("show learngene", FAILED, ("spec: width", "int"), edit(CONFIG, spec__width="32")),
    Case("show learngene", FAILED, ("spec: width", "int"), edit(CONFIG, spec__width=32.5)),
    Case("show learngene", FAILED, ("heads do not divide",), edit(CONFIG, spec__heads=3)),
    Case("show learngene", FAILED, ("pool", "token"), edit(CONFIG, spec__pool="attic")),
    Case("show learngene", FAILED, ("unknown key 'hook'",), edit(CONFIG, hook="os.system")),
    Case("show learngene", FAILED, ("'spec' is missing",), edit(CONFIG, spec=...)),
    Case("show learngene", FAILED, ("ancestries", "list"), edit(CONFIG, ancestries={})),
    Case(
        "expand learngene",
        FAILED,
        ("'../../evil'", "not installed"),
        edit(CONFIG, method="../../evil"),
    ),
    Case(
        "expand learngene", FAILED, ("'tleg9'", "install its plugin"), edit(CONFIG, method="tleg9")
    ),
    Case(
        "expand learngene", FAILED, ("kept",), edit(CONFIG, details={"kept": ["../../etc/passwd"]})
    ),
    Case("expand learngene", FAILED, ("kept",), edit(CONFIG, details={"kept": [1, 99]})),
    Case("show learngene", FAILED, ("not valid JSON",), write(CONFIG, "{format: 1}")),
    Case("show learngene", FAILED, ("not valid JSON",), cut(CONFIG, 0.5)),
    Case("show learngene", FAILED, ("is not a JSON object",), write(CONFIG, "[1, 2]")),
    Case("show learngene", FAILED, ("not valid JSON",), write(CONFIG, "[" * 200_000)),
    Case("show learngene", FAILED, ("not valid JSON",), write(CONFIG, b"\xff\xfe\x00\x01")),
    Case("show learngene", FAILED, ("larger than 16 MiB",), write(CONFIG, b" " * (17 * 2**20))),
    Case(
        "evaluate model",
        FAILED,
        ("format is 7", "format 1"),
        edit(MODEL_CONFIG, learngene__format=7),
    ),
    Case(
        "evaluate model",
        FAILED,
        ("contradicts itself", "layers is 4"),
        edit(MODEL_CONFIG, model_args__depth=4),
    ),
    Case("evaluate model", FAILED, ("evil",), edit(MODEL_CONFIG, model_args__evil="builtins.eval")),
    Case(
        "evaluate model",
        FAILED,
        ("inherited", "'nothing'"),
        edit(MODEL_CONFIG, learngene__inherited=["nothing"]),
    ),
    Case(
        "evaluate model",
        WRONG,
        ("resnet18", "not supported; supported are"),
        edit(MODEL_CONFIG, architecture="resnet18"),
    ),
    Case(
        "evaluate model",
        FAILED,
        ("std", "positive"),
        edit(MODEL_CONFIG, pretrained_cfg__std=[0, 0, 0]),
    ),
]

DATA = [
    Case("finetune model --task folder:nowhere", FAILED, ("no folder nowhere", "subfolder")),
    Case("finetune model --task folder:empty", FAILED, ("empty",), folder("empty")),
    Case("finetune model --task folder:photos", FAILED, ("one class",), remove("photos/red")),
    Case("finetune model --task folder:photos", FAILED, ("green",), folder("photos/green")),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o new",
        FAILED,
        ("photos/red/", "cannot be read", "replace or remove it"),
        lambda root: (
            [write(f"photos/red/{i}.png", b"no picture")(root) for i in range(8)]
            and write("photos/red/broken.png", b"no picture")(root)
        ),
    ),
    Case(
        "finetune model --task parquet:nowhere.parquet",
        FAILED,
        ("nowhere.parquet", ".parquet file"),
    ),
    Case(
        "finetune model --task parquet:t.parquet",
        FAILED,
        ("t.parquet",),
        write("t.parquet", b"PAR1 but not really"),
    ),
    Case("finetune model --task hf:nobody/nothing --offline", FAILED, ("nobody/nothing",)),
    Case("finetune model --task hf:../../etc", WRONG, ("hf:../../etc",)),
    Case("finetune model --task folder:", WRONG, ("folder:",)),
    Case(
        "evaluate model --task objects",
        WRONG,
        ("2 classes", "lgzoo finetune model -o NEW --task objects"),
    ),
    Case("doctor --task folder:nowhere", FAILED, ("no folder nowhere", "subfolder")),
]


CASES = [*CALLS, *SIZES, *PLACES, *FILES, *CONFIGS, *DATA]


def outside(settings: Any) -> Iterator[tuple[str, str, str]]:
    """Return for every setting its option, an impossible value, and a word of the error.

    There is one value for each bound.
    """
    from learngene_zoo.settings import list_settings

    for setting in list_settings(settings):
        option, bounds = f"--{setting.option}", setting.bounds
        if setting.choices:
            yield option, "sideways", "'sideways'"
        elif setting.kind in (int, float):
            yield option, "some", "'some' is not"
            yield option, "1.5" if setting.kind is int else "nan", "is not"
            if bounds is not None:
                low = bounds.least - 1 if bounds.least is not None else bounds.above
                high = bounds.most + 1 if bounds.most is not None else bounds.below
                for value in (low, high):
                    if value is not None:
                        yield option, f"{value:.12g}", f"it must be {bounds}"
