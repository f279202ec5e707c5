"""Lines that cannot succeed, each with what is done to the folder before it, the exit code and words that the error must hold.

`CASES` are written by hand, grouped by what is wrong; `outside` makes those that follow from the bounds and kinds of settings.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bad_folders import (
    Change,
    both,
    cut,
    edit,
    enormous,
    every_image,
    fifo,
    flip,
    folder,
    foreign,
    halved,
    link,
    parquet,
    poison,
    remove,
    reshape,
    retensor,
    sized,
    tar,
    unfinished,
    write,
)  # fmt: skip

WRONG, FAILED = 2, 1
BRIEF = "--epochs 1 --images 8 --batch-size 4"


@dataclass(frozen=True)
class Case:
    """`leaves` is what a call may add: the folder of a run that had begun."""

    line: str
    code: int
    words: tuple[str, ...]
    change: Change | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    leaves: str = ""

    @property
    def name(self) -> str:
        """For pytest's output."""
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
    Case("list modules", WRONG, ("'modules'", "did you mean methods?")),
    Case("completion tcsh", WRONG, ("'tcsh'", "'bash', 'zsh', 'fish'")),
    Case("extract lsamd --rooting batch", WRONG, ("no option named --rooting", "did you mean --routing?")),
    Case("expand learngene --laers 2", WRONG, ("no option named --laers", "did you mean --layers?")),
    Case("expand learngene --priorty x", WRONG, ("no option named --priorty", "did you mean --priority?")),
    Case("expand learngene --priority up", WRONG, ("--priority", "'up'", "'last-middle-first'")),
    Case("extract lsamd --preset papper", WRONG, ("no preset of lsamd named 'papper'", "did you mean paper?")),
    Case("extract lsamd --ancestry ancestry --task obects -o new", WRONG, ("'obects'", "did you mean objects?")),
    Case(
        "extract lsamd --ancestry ancestry --task folder:photos --task folder:photos -o new",
        WRONG,
        ("photos is named twice", "once"),
    ),
    Case("extract scratch --ancestry timm:deit_bse_patch16_224", WRONG, ("deit_bse_patch16_224", "did you mean")),
    Case("extract scratch --ancestry ./nowhere", WRONG, ("nowhere",)),
    Case("plan lsamd --ancestry timm:resnet18", WRONG, ("resnet18", "not supported; supported are")),
    Case("extract lsamd --ancestry ancestry --ancestry ancestry", WRONG, ("lsamd takes 1", "not 2")),
    Case("evaluate model --task nonsense", WRONG, ("'nonsense'",)),
    Case("evaluate timm:deit_tyny --task folder:photos", WRONG, ("no timm model named 'deit_tyny'",)),
    Case("evaluate timm:resnet10t --task folder:photos --offline", FAILED, ("resnet10t", "offline")),
    Case("compare model", WRONG, ("missing argument 'SECOND'",)),
    Case("compare model nowhere --task folder:photos", WRONG, ("no model at nowhere",)),
    Case("compare model learngene --task folder:photos", WRONG, ("is a learngene",)),
    Case("predict model", WRONG, ("missing argument 'IMAGES...'",)),
    Case("predict model nothing.png", FAILED, ("nothing.png",)),
    Case("predict model scratched", WRONG, ("holds no pictures",)),
    Case("finetune model --task folder:photos --keep worst", WRONG, ("--keep", "worst")),
    Case("finetune model --task folder:photos --patience 0", WRONG, ("--patience", "at least 1")),
    Case("evaluate model --split holdout", WRONG, ("--split", "'holdout'", "'test'")),
    Case("evaluate model --task folder:photos --device tpu", WRONG, ("tpu", "cpu")),
    Case("evaluate model --precision fp8", WRONG, ("--precision", "'fp8'", "'bf16'")),
    Case("plan lsamd --convention mine", WRONG, ("--convention", "'mine'", "'thop'")),
    Case("plan lsamd --ancestry ancestry --layers 99", WRONG, ("no size that lsamd lists", "--layers")),
    Case("expand learngene --seed -1", WRONG, ("--seed", "-1")),
    Case("expand learngene --threads 0", WRONG, ("--threads", "0")),
    Case("expand learngene extra", WRONG, ("extra", "--help")),
    Case("expand learngene --layers seven", WRONG, ("--layers", "'seven'")),
    Case("expand learngene --layers 0", WRONG, ("--layers", "0")),
    Case("extract lsamd --top 0", WRONG, ("'--top': 0 is out of range", "at least 1")),
    Case("extract lsamd --keep 9 --ancestry ancestry --task folder:photos -o new", WRONG, ("block 9", "1 to 3")),
    Case("finetune model --lr -1", WRONG, ("'--lr': -1 is out of range", "above 0")),
    Case("finetune model --batch-size 10 --accumulate 3", WRONG, ("accumulate is 3", "10")),
    Case("finetune model --drop-path 1.5", WRONG, ("'--drop-path': 1.5 is out of range", "at least 0 and below 1")),
    Case("finetune model --epochs many", WRONG, ("--epochs", "'many'")),
    Case(f"finetune model --task folder:photos --tracker nosuch {BRIEF}", WRONG, ("nosuch", "tensorboard")),
]

SIZES = [
    Case("train --task folder:photos --width 30 --heads 4", WRONG, ("4 heads do not divide a width of 30", "try 3")),
    Case("train --task folder:photos --image-size 33", WRONG, ("patches of 8", "33")),
    Case("train --task folder:photos --layers 9999", WRONG, ("layers is 9999", "512")),
    Case("expand scratched --heads 3", WRONG, ("3 heads do not divide a width of 32", "try 2")),
    Case("expand scratched --layers 513", WRONG, ("layers is 513", "512")),
    Case("expand learngene --layers 1", WRONG, ("1", "2")),
    Case(
        "expand learngene --width 64",
        WRONG,
        ("width is 64", "all descendants of this learngene have width 32", "layers, classes, image_size"),
    ),
    Case("expand learngene --max-params 1K", WRONG, ("1.00K parameters", "smallest", "2 layers")),
    Case("expand learngene --max-flops 10 --max-params 20M", WRONG, ("10 FLOPs", "smallest")),
    Case("expand learngene --max-latency 1us", WRONG, ("at most 1us", "smallest", "on this machine")),
    Case("expand learngene --max-params 20Q", WRONG, ("'20Q'", "20M")),
    Case("expand learngene --max-params=-3M", WRONG, ("'-3M'", "20M")),
    Case("expand learngene --max-flops nan", WRONG, ("'nan'", "3G")),
    Case("expand learngene --max-latency 15", WRONG, ("'15'", "15ms")),
]

PLACES = [
    Case("expand", WRONG, ("no learngene at ./learngene", "lgzoo extract"), remove("learngene")),
    Case("finetune", WRONG, ("no model at ./descendant", "lgzoo expand")),
    Case("evaluate", WRONG, ("no model at ./finetuned or ./descendant", "lgzoo expand")),
    Case("expand model --layers 2", FAILED, ("model is a model, not a learngene", "lgzoo finetune")),
    Case("finetune learngene", WRONG, ("learngene is a learngene, not a model", "lgzoo expand learngene")),
    Case("evaluate learngene", WRONG, ("learngene is a learngene, not a model", "lgzoo expand learngene")),
    Case("extract scratch --ancestry learngene", FAILED, ("learngene",)),
    Case("expand learngene --layers 2 -o model", FAILED, ("model already exists", "--force")),
    Case("extract scratch --ancestry ancestry -o learngene", FAILED, ("learngene already exists", "--force")),
    Case(f"finetune model --task folder:photos {BRIEF} -o learngene", FAILED, ("learngene already exists", "--force")),
    Case("train --task folder:photos -o learngene", FAILED, ("learngene already exists", "--force")),
    Case("evaluate model --task folder:photos -o model/config.json", FAILED, ("config.json already exists", "--force")),
    Case("plot learngene -o notes.png", FAILED, ("notes.png already exists", "--force"), write("notes.png", "mine")),
    Case("plot learngene -o notes.jpg", WRONG, ("notes.jpg", ".png or .svg")),
    Case("plot scratched -o new.png", WRONG, ("scratch draws no picture",)),
    Case("expand learngene --layers 2 -o notes --force", FAILED, ("notes is a file", "-o"), write("notes", "mine")),
    Case("expand learngene --layers 2 -o notes/new", FAILED, ("notes is a file", "-o"), write("notes", "mine")),
    Case("expand learngene --layers 2 -o . --force", FAILED, ("the current folder", "-o")),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o new",
        FAILED,
        ("unfinished run is in new.run", "--resume", "--force"),
        unfinished("new.run"),
    ),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o new --resume",
        FAILED,
        ("started with other settings", "verb: x then, finetune now"),
        unfinished("new.run"),
    ),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o new --force",
        FAILED,
        ("not the folder of a run", "-o"),
        write("new.run/notes.txt", "mine"),
    ),
]

FILES = [
    Case("expand learngene --layers 2", FAILED, ("model.safetensors",), cut(WEIGHTS, 0.5)),
    Case("expand learngene --layers 2", FAILED, ("model.safetensors",), cut(WEIGHTS, 0.0001)),
    Case("expand learngene --layers 2", FAILED, ("model.safetensors", "safetensors file"), write(WEIGHTS, b"x" * 4096)),
    Case(
        "expand learngene --layers 2", FAILED, ("model.safetensors", "safetensors file"), write(WEIGHTS, LYING_HEADER)
    ),
    Case("expand learngene --layers 2", FAILED, ("model.safetensors", "safetensors file"), write(WEIGHTS, PICKLE)),
    Case("expand learngene --layers 2", FAILED, ("model.safetensors does not exist",), remove(WEIGHTS)),
    Case("expand learngene --layers 2", FAILED, ("qkv.weight", "not finite"), retensor(WEIGHTS, poison)),
    Case("expand learngene --layers 2", FAILED, ("norm1.weight",), retensor(WEIGHTS, reshape)),
    Case("expand learngene --layers 2", FAILED, ("lacks the tensor",), retensor(WEIGHTS, foreign)),
    Case("evaluate model --task folder:photos", FAILED, ("model.safetensors",), cut(MODEL, 0.7)),
    Case("evaluate model --task folder:photos", FAILED, ("not finite",), retensor(MODEL, poison)),
    Case("evaluate model --task folder:photos", FAILED, ("norm1.weight",), retensor(MODEL, reshape)),
    Case("evaluate model --task folder:photos", FAILED, ("model.safetensors",), retensor(MODEL, foreign)),
    Case("evaluate model --task folder:photos", FAILED, ("model.safetensors",), write(MODEL, PICKLE)),
    Case(
        "extract scratch --ancestry weights.pth", FAILED, ("weights.pth", "safetensors"), write("weights.pth", PICKLE)
    ),
    Case("extract scratch --ancestry ancestry", FAILED, ("ancestry",), cut("ancestry/model.safetensors", 0.5)),
    Case(
        "extract scratch --ancestry ancestry",
        FAILED,
        ("ancestry", "safetensors"),
        both(remove("ancestry/model.safetensors"), write("ancestry/pytorch_model.bin", PICKLE)),
    ),
]

CONFIGS = [
    Case("expand learngene", FAILED, ("config.json does not exist",), remove(CONFIG)),
    Case("show learngene", FAILED, ("format is 99", "format 1"), edit(CONFIG, format=99)),
    Case("show learngene", FAILED, ("format is None", "format 1"), edit(CONFIG, format=...)),
    Case("expand learngene", FAILED, ("layers is 1000000000", "512"), edit(CONFIG, spec__layers=10**9)),
    Case("expand learngene", FAILED, ("classes is 10000000000",), edit(CONFIG, spec__classes=10**10)),
    Case("show learngene", FAILED, ("spec: width", "int"), edit(CONFIG, spec__width="32")),
    Case("show learngene", FAILED, ("spec: width", "int"), edit(CONFIG, spec__width=32.5)),
    Case("show learngene", FAILED, ("heads do not divide",), edit(CONFIG, spec__heads=3)),
    Case("show learngene", FAILED, ("pool", "token"), edit(CONFIG, spec__pool="attic")),
    Case("show learngene", FAILED, ("unknown key 'hook'",), edit(CONFIG, hook="os.system")),
    Case("show learngene", FAILED, ("'spec' is missing",), edit(CONFIG, spec=...)),
    Case("show learngene", FAILED, ("ancestries", "list"), edit(CONFIG, ancestries={})),
    Case("expand learngene", FAILED, ("'../../evil'", "not installed"), edit(CONFIG, method="../../evil")),
    Case("expand learngene", FAILED, ("'tleg9'", "install its plugin"), edit(CONFIG, method="tleg9")),
    Case("expand learngene", FAILED, ("kept",), edit(CONFIG, details={"kept": ["../../etc/passwd"]})),
    Case("expand learngene", FAILED, ("kept",), edit(CONFIG, details={"kept": [1, 99]})),
    Case("show learngene", FAILED, ("not valid JSON",), write(CONFIG, "{format: 1}")),
    Case("show learngene", FAILED, ("not valid JSON",), cut(CONFIG, 0.5)),
    Case("show learngene", FAILED, ("is not a JSON object",), write(CONFIG, "[1, 2]")),
    Case("show learngene", FAILED, ("not valid JSON",), write(CONFIG, "[" * 200_000)),
    Case("show learngene", FAILED, ("not valid JSON",), write(CONFIG, b"\xff\xfe\x00\x01")),
    Case("show learngene", FAILED, ("larger than 16 MiB",), write(CONFIG, b" " * (17 * 2**20))),
    Case("evaluate model", FAILED, ("format is 7", "format 1"), edit(MODEL_CONFIG, learngene__format=7)),
    Case("export model -o x.onnx", FAILED, ("'learngene'", "--ancestry"), edit(MODEL_CONFIG, learngene=...)),
    Case("evaluate model", FAILED, ("contradicts itself", "layers is 4"), edit(MODEL_CONFIG, model_args__depth=4)),
    Case("evaluate model", FAILED, ("evil",), edit(MODEL_CONFIG, model_args__evil="builtins.eval")),
    Case("evaluate model", FAILED, ("inherited", "'nothing'"), edit(MODEL_CONFIG, learngene__inherited=["nothing"])),
    Case(
        "evaluate model",
        WRONG,
        ("resnet18", "not supported; supported are"),
        edit(MODEL_CONFIG, architecture="resnet18"),
    ),
    Case("evaluate model", FAILED, ("std", "positive"), edit(MODEL_CONFIG, pretrained_cfg__std=[0, 0, 0])),
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
    Case("finetune model --task parquet:nowhere.parquet", FAILED, ("nowhere.parquet", ".parquet file")),
    Case("finetune model --task parquet:t.parquet", FAILED, ("t.parquet",), write("t.parquet", b"PAR1 but not really")),
    Case("finetune model --task hf:nobody/nothing --offline", FAILED, ("nobody/nothing",)),
    Case("finetune model --task hf:../../etc", WRONG, ("hf:../../etc",)),
    Case("finetune model --task folder:", WRONG, ("folder:",)),
    Case("evaluate model --task objects", WRONG, ("2 classes", "lgzoo finetune --task objects")),
    Case("doctor --task folder:nowhere", FAILED, ("no folder nowhere", "subfolder")),
]


CASES = [*CALLS, *SIZES, *PLACES, *FILES, *CONFIGS, *DATA]


# Wrong in the same way for every verb that has the option or takes such a file.

WRITES = {
    "train": "train --task folder:photos",
    "extract": "extract scratch --ancestry ancestry",
    "expand": "expand learngene",
    "finetune": f"finetune model --task folder:photos {BRIEF}",
    "evaluate": "evaluate model --task folder:photos",
}
JOBS = [
    Case(f"{line} {options}", code, words)
    for line in WRITES.values()
    for options, code, words in [
        ("--threads 100000", WRONG, ("--threads", "100000")),
        ("--threads few", WRONG, ("--threads", "'few'")),
        ("--workers 1000000", WRONG, ("--workers", "1000000")),
        ("--workers=-1", WRONG, ("--workers", "-1")),
        ("--seed 1e3", WRONG, ("--seed", "'1e3'")),
        (f"--seed {10**30}", WRONG, ("--seed", f"{10**30}")),
        ("--precision half", WRONG, ("--precision", "'half'")),
        ("--device gpu -o new", WRONG, ("gpu", "cpu")),
        ("--seed", WRONG, ("--seed", "requires an argument")),
        ("--sed 3", WRONG, ("no option named --sed", "--seed")),
        ("a b c", WRONG, ("too many arguments", "see lgzoo")),
        (f"-o {'n' * 300}", FAILED, ("nnn", "too long")),
        (f"-o {'/'.join(['n' * 200] * 30)}", FAILED, ("nnn", "too long")),
        ("--device cuda:x -o new", WRONG, ("'cuda:x'",)),
        ("-o loop", FAILED, ("loop",)),
        ("-o pipe", FAILED, ("pipe",)),
        ("-o /proc/nowhere", FAILED, ("/proc",)),
    ]
]
JOBS = [replace(case, change=both(link("loop", "loop"), fifo("pipe"))) for case in JOBS]

NAMES = [
    *(Case(f"{verb} nosuch", WRONG, ("nosuch",)) for verb in ("extract", "plan", "show", "expand", "finetune", "plot")),
    *(Case(f"show {name}", code, (word,)) for name, code, word in [
        ("photos", FAILED, "photos"), ("photos/red/0.png", WRONG, "0.png"), ("folder:nowhere", FAILED, "nowhere"),
        ("''", WRONG, "''"), ("/", FAILED, "/"), ("hf:a", WRONG, "hf:a"), ("wds:nowhere.tar", FAILED, "nowhere.tar"),
        ("learngene/model.safetensors", WRONG, "model.safetensors"), ("x" * 5000, FAILED, "too long"),
    ]),
    *(Case(f"evaluate model --task {task}", code, (word,)) for task, code, word in [
        ("folder:photos/red/0.png", FAILED, "0.png"), ("folder:/proc/self/mem", FAILED, "mem"), ("ftp:x", WRONG, "ftp:x"),
        (":", WRONG, "':'"), ("hf:", WRONG, "hf:"), ("hf:a/b/c", WRONG, "a/b/c"), ("hf:/", WRONG, "hf:/"),
        ("parquet:photos", FAILED, "photos"), ("parquet:photos/red/0.png", FAILED, "0.png"), ("wds:", WRONG, "wds:"),
        ("wds:photos/red/0.png", FAILED, "0.png"), ("wds:photos", FAILED, "photos"), ("wds:a-{0..2}.tar", FAILED, "a-0"),
        ("wds:{0..999999999999}.tar", WRONG, "999"), ("wds:http://localhost:1/a.tar --offline", FAILED, "offline"),
        ("hf-stream:a/b --offline", FAILED, "offline"), ("hf-stream:a", WRONG, "a"), ("imagenet", WRONG, "imagenet"),
        ("hf:a/b@main --offline", FAILED, "a/b"), (f"folder:{'n' * 300}", FAILED, "nnn"), ("folder:pho\0tos", FAILED, "tos"),
        ("digits,objects", WRONG, "digits"), ("DIGITS", WRONG, "digits"), ("mini", WRONG, "mini"),
    ]),
    *(Case(f"extract scratch -o new --ancestry {name}", code, (word,)) for name, code, word in [
        ("photos", FAILED, "photos"), ("photos/red/0.png", FAILED, "0.png"), ("timm:", WRONG, "timm:"),
        ("timm:vit", WRONG, "vit"), ("hf:a", WRONG, "'hf'"), ("''", WRONG, "empty"), ("model/config.json", FAILED, "config.json"),
        ("hf-hub:a/b --offline", FAILED, "a/b"), ("timm:vit_tiny_patch16_224 --offline", FAILED, "vit_tiny_patch16_224"),
    ]),
]  # fmt: skip

MORE_SIZES = [
    Case(f"train --task folder:photos -o new --{name} {value}", WRONG, (f"{name.replace('-', '_')}", value))
    for name, value in [
        ("image-size", str(10**9)), ("width", str(10**9)), ("layers", str(10**9)), ("heads", str(10**9)),
        ("patch-size", str(10**9)), ("registers", str(10**9)), ("mlp-ratio", "1e+30"), ("layers", "-1"), ("width", "0"),
        ("heads", "0"), ("image-size", "0"), ("patch-size", "0"), ("registers", "-1"), ("mlp-ratio", "-1"),
    ]
] + [
    Case(f"train --task folder:photos -o new --{name} {value}", WRONG, (f"--{name}", value))
    for name, value in [("layers", "2.5"), ("mlp-ratio", "nan"), ("pool", "attic"), ("layer-scale", "tiny"), ("init", "x")]
] + [
    Case(f"expand {kind} -o new {options}", WRONG, words)
    for kind in ("learngene", "scratched")
    for options, words in [
        (f"--layers {10**9}", (f"{10**9}",)), (f"--classes {10**12}", (f"{10**12}",)),
        (f"--image-size {10**9}", (f"{10**9}",)), ("--image-size 15", ("15",)), ("--image-size 0", ("0",)),
        ("--classes -2", ("-2",)), ("--layers ''", ("--layers",)), ("--layers 3,4", ("'3,4'",)), ("--heads 0", ("0",)),
        ("--width -32", ("-32",)), ("--mlp-ratio 0", ("0",)), ("--max-params 0", ("0",)), ("--max-params inf", ("'inf'",)),
        ("--max-latency 0s", ("0s",)), ("--max-flops 1e400", ("1e400",)), ("--max-latency nan", ("nan",)),
        ("--control shuffle", ("'shuffle'",)), ("--layers 2 --layers x", ("'x'",)),
    ]
]  # fmt: skip

MORE_FILES = [
    Case(f"{line} -o new", FAILED, (word,), change)
    for line, place in [("expand learngene", "learngene"), ("finetune model --task folder:photos", "model")]
    for word, change in [
        ("config.json", fifo(f"{place}/config.json")), ("model.safetensors", fifo(f"{place}/model.safetensors")),
        ("config.json", write(f"{place}/config.json", b"")), ("model.safetensors", write(f"{place}/model.safetensors", b"")),
        ("config.json", both(remove(f"{place}/config.json"), folder(f"{place}/config.json"))),
        ("model.safetensors", both(remove(f"{place}/model.safetensors"), folder(f"{place}/model.safetensors"))),
        ("config.json", both(remove(f"{place}/config.json"), link(f"{place}/config.json", "config.json"))),
        ("config.json", write(f"{place}/config.json", "null")),
        ("config.json", write(f"{place}/config.json", '{"a": NaN}')), ("config.json", flip(f"{place}/config.json", 0)),
        ("config.json", write(f"{place}/config.json", '{"a": ' + "9" * 5000 + "}")),
        ("safetensors", flip(f"{place}/model.safetensors", 0)),
    ]
]  # fmt: skip
MORE_CONFIGS = [
    Case("expand learngene -o new", FAILED, ("config.json",), write(CONFIG, "{}"))
] + [
    Case("expand learngene -o new", FAILED, (key.rpartition("__")[2],), edit(CONFIG, **{key: value}))
    for key in ("spec__layers", "spec__width", "spec__heads", "spec__classes", "spec__image_size", "spec__patch_size")
    for value in (-1, 0, "3", None, 1.5, [3], 10**18)
    if (key, value) != ("spec__classes", 0)  # a model without a head
] + [
    Case("expand learngene -o new", FAILED, (key,), edit(CONFIG, **{key: value}))
    for key in ("method", "spec", "details", "ancestries", "format", "preset", "task")
    for value in (-1, ["x"], "../x", True)
    if not (key in ("task", "preset") and value == "../x")
]  # fmt: skip

RED = ["red", "blue"] * 10
OWN_DATA = [
    Case(f"finetune model {BRIEF} -o new --task {task}", FAILED, words, change, leaves=leaves)
    for task, words, change, leaves in [
        ("folder:photos", ("photos/red", "no image"), both(remove("photos/red"), folder("photos/red")), ""),
        ("folder:~nosuchuser/photos", ("~nosuchuser",), None, ""), ("parquet:~nosuchuser/t", ("~nosuchuser",), None, ""),
        ("wds:~nosuchuser/t.tar", ("~nosuchuser",), None, ""),
        ("folder:photos", ("\\udcff", "UTF-8"), lambda root: (root / "photos/red").rename(os.fsdecode(
            os.fsencode(root / "photos") + b"/\xff")), ""),
        ("folder:photos", ("photos",), both(remove("photos"), folder("photos")), ""),
        ("folder:photos", ("class",), both(remove("photos/red"), write("photos/blue.png", b"x")), ""),
        ("folder:photos", ("beside train/",), both(folder("photos/train"), folder("photos/extra")), ""),
        ("folder:photos", ("red", "cannot be read"), every_image(lambda data: b""), "new.run"),
        ("folder:photos", ("red", "cannot be read"), every_image(halved), "new.run"),
        ("folder:photos", ("red", "cannot be read"), every_image(halved, "jpeg"), "new.run"),
        ("folder:photos", ("red", "pixels"), every_image(enormous), "new.run"),
        ("folder:photos", ("red", "missing or not a file"), lambda root: [
            fifo(f"photos/red/{i}.png")(root) for i in range(8)], "new.run"),
        ("folder:photos", ("red", "missing or not a file"), lambda root: [
            both(remove(f"photos/red/{i}.png"), link(f"photos/red/{i}.png", "nowhere"))(root) for i in range(8)], "new.run"),
        ("folder:photos", ("red", "missing or not a file"), lambda root: [
            both(remove(f"photos/red/{i}.png"), link(f"photos/red/{i}.png", f"{i}.png"))(root) for i in range(8)], "new.run"),
        ("parquet:t.parquet", ("t.parquet has no rows",), parquet("t.parquet", {"image": [], "label": []}), ""),
        ("parquet:t.parquet", ("label",), parquet("t.parquet", {"image": RED}), ""),
        ("parquet:t.parquet", ("image",), parquet("t.parquet", {"label": RED}), ""),
        ("parquet:t.parquet", ("one class",), parquet("t.parquet", {"image": RED, "label": ["red"] * 20}), ""),
        ("parquet:t.parquet", ("row 1", "empty"), parquet("t.parquet", {"image": RED, "label": ["red", None] * 10}), ""),
        ("parquet:t.parquet", ("t.parquet", "features"), parquet("t.parquet", {"image": RED, "label": RED}, {
            "image": {"_type": "Image"}, "label": {"_type": "Nonsense"}}), ""),
        ("parquet:t.parquet", ("t.parquet", "features"), parquet("t.parquet", {"image": RED, "label": RED}, "{"), ""),
        ("parquet:t.parquet", ("t.parquet", "features"), parquet("t.parquet", {"image": RED, "label": RED}, [1]), ""),
        ("parquet:t.parquet", ("t.parquet",), parquet("t.parquet", {"image": RED, "label": RED}, {
            "image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": 7}}), ""),
        ("parquet:t.parquet", ("t.parquet", "duplicated"), parquet("t.parquet", {"image": RED, "label": [0, 1] * 10}, {
            "image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["red", "red"]}}), ""),
        ("parquet:t.parquet", ("label", "7"), parquet("t.parquet", {"image": RED, "label": [0, 7] * 10}, {
            "image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["red", "blue"]}}), ""),
        *(("parquet:t.parquet", ("t.parquet",), both(
            parquet("t.parquet", {"image": RED, "label": RED}), change), "") for change in (
            cut("t.parquet", 0.5), flip("t.parquet", -6), flip("t.parquet", 30), write("t.parquet", b""))),
        ("parquet:t.parquet", ("t.parquet",), fifo("t.parquet"), ""),
        ("parquet:data", ("no split",), both(folder("data"), *(
            parquet(f"data/{name}.parquet", {"image": RED, "label": RED}) for name in ("train", "x"))), ""),
        ("wds:t.tar", ("30000000 bytes"), tar("t.tar", ("1.png", None), ("1.cls", b"7" * 30_000_000)), ""),
        ("wds:t.tar", ("t.tar",), tar("t.tar", ("1.png", None), ("1.cls", b"1"), spoil=sized(b"\x80" + b"\x7f" * 11)), ""),
        ("wds:t.tar", ("t.tar",), tar("t.tar", ("1.png", None), ("1.cls", b"1"), spoil=sized(b"\xff" * 12)), ""),
        ("wds:t.tar", ("t.tar",), tar("t.tar", ("1.png", None), ("1.cls", b"1"), spoil=sized(b"77777777777\0")), ""),
        ("wds:t.tar", ("t.tar",), write("t.tar", b""), ""),
        ("wds:t.tar", ("t.tar",), write("t.tar", b"x" * 4096), ""),
        ("wds:t.tar", ("t.tar",), fifo("t.tar"), ""),
        ("wds:t.tar", ("t.tar",), folder("t.tar"), ""),
        ("wds:t.tar", ("1.cls", "label"), tar("t.tar", ("1.png", None), ("1.cls", b"")), ""),
        ("wds:t.tar", ("1.cls",), tar("t.tar", ("1.png", None), ("1.cls", b"\xff\xfe")), ""),
        ("wds:t.tar", ("1.json",), tar("t.tar", ("1.png", None), ("1.json", b"[" * 100_000)), ""),
        ("wds:t.tar", ("-1",), tar("t.tar", ("1.png", None), ("1.cls", b"-1")), ""),
        ("wds:t.tar", ("no label",), tar("t.tar", ("1.png", None)), ""),
        ("wds:t.tar", ("0 images",), tar("t.tar", ("1.cls", b"1")), ""),
        ("wds:t.tar", ("pickle",), tar("t.tar", ("1.png", None), ("1.cls", b"1"), ("1.pyd", b"x")), ""),
        ("wds:t.tar", ("twice",), tar("t.tar", ("1.png", None), ("1.png", None), ("1.cls", b"1")), ""),
        ("wds:t.tar", ("one class",), tar("t.tar", ("1.png", None), ("1.cls", b"1")), ""),
    ]
]  # fmt: skip

BENCH = "bench folder:photos --ancestry ancestry --layers 3 --epochs 1 --seeds 1 --images 8 -o new"
BENCHES = [
    Case(f"{BENCH} {options}", code, words)
    for options, code, words in [
        *((f"--set {text}", WRONG, (word,)) for text, word in [
            ("lsamd", "METHOD.NAME=VALUE"), ("=", "METHOD.NAME=VALUE"), ("lsamd.top", "METHOD.NAME=VALUE"),
            (".top=1", "no method"), ("lsamd.=1", "no setting named ''"), ("lsamd.top=", "--set lsamd.top: ''"),
            ("lsamd.top=x", "'x' is not an integer"), ("lsamd.top=1.5", "'1.5' is not an integer"),
            ("lsamd.top=[1]", "'[1]' is not an integer"), ("lsamd.top={}", "'{}'"), ("lsamd.top=-1", "out of range"),
            ("lsamd.keep=1,two", "'two'"), ("lsamd.keep=0", "out of range"), ("lsamd.lr=nan", "finite"),
            ("lsamd.lr=true", "'true'"), ("lsamd.shared=perhaps", "'perhaps'"), ("lsamd.routing=3", "'3'"),
            ("lsamd.lr=1e999", "finite"), ("lsamd.training.lr=1", "training.lr"), ("lsamd.augment=blur", "'blur'"),
            (f"lsamd.top={'9' * 5000}", "--set lsamd.top"),
        ]),
        *((f"--size {text}", WRONG, (word,)) for text, word in [
            ("low", "NAME=VALUE"), ("=3", "NAME=VALUE"), ("low=", "NAME=VALUE"), ("low=3", "low"), ("low=[[", "low"),
            ("priority=x", "priority"), ("=", "NAME=VALUE"), ("low=3,,", "NAME=VALUE"),
        ]),
        ("--layers 99", WRONG, ("99",)), ("--layers 0", WRONG, ("0",)), ("--layers=-3", WRONG, ("-3",)),
        ("--layers 3.5", WRONG, ("'3.5'",)), ("--epochs=-1", WRONG, ("epochs", "-1")), ("--epochs x", WRONG, ("'x'",)),
        ("--seeds=-1", WRONG, ("--seeds",)), ("--seeds 1e9", WRONG, ("--seeds",)), ("--width 7", WRONG, ("7",)),
        ("--tune 0", WRONG, ("above 0",)), ("--tune=-1", WRONG, ("above 0",)), ("--tune x", WRONG, ("'x'",)),
        ("--tune nan", WRONG, ("nan",)), ("--tune inf", WRONG, ("inf",)), ("--seed 1000 --tune 1e-3", WRONG, ("1000",)),
        ("--budget huge", WRONG, ("'huge'", "'quick'")), ("--preset huge", WRONG, ("huge",)), ("--method x", WRONG, ("'x'",)),
        ("--method scratch", WRONG, ("arm of every grid",)), ("--task x", WRONG, ("'x'",)), ("--split train", WRONG, ("train",)),
        ("--workers 0", WRONG, ("--workers",)), ("--workers 1000000", WRONG, ("--workers", "1000000")),
        ("--threads 100000", WRONG, ("--threads",)), ("--claim nosuch", WRONG, ("leave SUITE out",)),
        ("--ancestry nowhere --ancestry nowhere", WRONG, ("not 3",)), ("--device tpu", WRONG, ("tpu",)),
        ("--leave-out --extract-task folder:photos", WRONG, ("photos",)), ("--report", WRONG, ("no results.jsonl in new",)),
        ("--images 0", WRONG, ("--images", "0")), ("--batch-size 0", WRONG, ("--batch-size",)),
        ("--batch-size 5 --accumulate 2", WRONG, ("accumulate",)), ("--ray nonsense://x", FAILED, ("Ray",)),
        ("--workers 2 --ray local", WRONG, ("exclude",)), ("-o photos/red/0.png", FAILED, ("0.png",)),
        (f"-o {'n' * 300}", FAILED, ("too long",)),
    ]
] + [
    Case(f"{BENCH} {options}", FAILED, (word,), write("new/results.jsonl", 2 * content), leaves="new")
    for options in ("", "--report")
    for word, content in [
        ("results.jsonl", b"{}\n"), ("results.jsonl", b"null\n"), ("results.jsonl", b"\xff\n"), ("results.jsonl", b"x\n"),
        ("results.jsonl", b"[" * 100_000 + b"\n"), ("results.jsonl", b'{"key": 1}\n'),
    ]
]  # fmt: skip

OTHERS = [
    Case(line, code, (word,), change)
    for line, code, word, change in [
        ("list methods extra", WRONG, "extra", None), ("completion", WRONG, "", None),
        ("--nonsense", WRONG, "--nonsense", None), ("plot nosuch", WRONG, "nosuch", None),
        ("plot model", FAILED, "model", None), ("plot learngene -o new.gif", WRONG, ".png or .svg", None),
        ("plot learngene -o photos", WRONG, "photos", None),
        ("plan scratch --preset x", WRONG, "'x'", None), ("plan lsamd --max-params 3", WRONG, "the smallest has", None),
        ("plan lsamd --layers x", WRONG, "'x'", None), ("plan lsamd --ancestry photos", FAILED, "photos", None),
        ("show learngene --split x", WRONG, "'x'", None), ("show learngene --convention x", WRONG, "'x'", None),
        ("doctor --task nosuch", WRONG, "nosuch", None), ("doctor extra", WRONG, "extra", None),
        ("demo --workers 0", WRONG, "--workers", None), ("demo --threads 0", WRONG, "--threads", None),
        ("demo extra", WRONG, "extra", None), ("demo -o photos/red/0.png", FAILED, "0.png", None),
        ("evaluate model --task folder:photos --offline=1", WRONG, "--offline", None),
        ("finetune model --task folder:photos --image-size 32", WRONG, "--image-size", None),
        ("finetune model --task folder:photos --layers 2", WRONG, "--layers", None),
    ]
]  # fmt: skip
ENVIRONMENT = [
    Case("evaluate model --task folder:photos", WRONG, (name, value), environment={name: value})
    for name, value in [("WORLD_SIZE", "abc"), ("WORLD_SIZE", "-1"), ("WORLD_SIZE", "1e3")]
] + [
    Case("evaluate model --task folder:photos", FAILED, ("MASTER_ADDR",), environment={"WORLD_SIZE": "2"}),
    Case("list methods", WRONG, ("RANK",), environment={"WORLD_SIZE": "2", "RANK": "7"}),
    Case("bench folder:photos", WRONG, ("torchrun",), environment={"WORLD_SIZE": "2", "RANK": "0"}),
]

CASES += [
    *JOBS, *NAMES, *MORE_SIZES, *MORE_FILES, *MORE_CONFIGS, *OWN_DATA, *BENCHES, *OTHERS, *ENVIRONMENT,
]  # fmt: skip


def outside(settings: Any) -> Iterator[tuple[str, str, str]]:
    """For every setting: its option, a value that it cannot have, and a word of the error; one value for each bound."""
    from learngene_zoo.settings import settings_of

    for setting in settings_of(settings):
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
