"""Further command lines that must fail, in the same way for every verb with this option or file.

`EVERY_CASE` includes those of bad_inputs.py.
"""

from __future__ import annotations

import os
from dataclasses import replace

from bad_folders import (
    both,
    cut,
    edit,
    enormous,
    every_image,
    fifo,
    flip,
    folder,
    halve,
    link,
    parquet,
    poison,
    remove,
    retensor,
    set_size,
    tar,
    write,
)
from bad_inputs import (
    BRIEF,
    CASES,
    CONFIG,
    FAILED,
    MODEL,
    MODEL_CONFIG,
    PICKLE,
    WRONG,
    Case,
)

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
# Options that mean nothing for a verb, which it has not.
LACKING = {"expand": ("--precision",), "evaluate": ("--seed", "--sed ")}
JOBS = [
    case
    for case in JOBS
    if not any(option in f"{case.line} " for option in LACKING.get(case.line.split()[0], ()))
]
JOBS = [replace(case, change=both(link("loop", "loop"), fifo("pipe"))) for case in JOBS]

NAMES = [
    *(
        Case(f"{verb} nosuch", WRONG, ("nosuch",))
        for verb in ("extract", "plan", "show", "expand", "finetune", "plot")
    ),
    *(
        Case(f"show {name}", code, (word,))
        for name, code, word in [
            ("photos", FAILED, "photos"),
            ("photos/red/0.png", WRONG, "0.png"),
            ("folder:nowhere", FAILED, "nowhere"),
            ("''", WRONG, "''"),
            ("/", FAILED, "/"),
            ("hf:a", WRONG, "hf:a"),
            ("wds:nowhere.tar", FAILED, "nowhere.tar"),
            ("learngene/model.safetensors", WRONG, "model.safetensors"),
            ("x" * 5000, FAILED, "too long"),
        ]
    ),
    *(
        Case(f"evaluate model --task {task}", code, (word,))
        for task, code, word in [
            ("folder:photos/red/0.png", FAILED, "0.png"),
            ("folder:/proc/self/mem", FAILED, "mem"),
            ("ftp:x", WRONG, "ftp:x"),
            (":", WRONG, "':'"),
            ("hf:", WRONG, "hf:"),
            ("hf:a/b/c", WRONG, "a/b/c"),
            ("hf:/", WRONG, "hf:/"),
            ("parquet:photos", FAILED, "photos"),
            ("parquet:photos/red/0.png", FAILED, "0.png"),
            ("wds:", WRONG, "wds:"),
            ("wds:photos/red/0.png", FAILED, "0.png"),
            ("wds:photos", FAILED, "photos"),
            ("wds:a-{0..2}.tar", FAILED, "a-0"),
            ("wds:{0..999999999999}.tar", WRONG, "999"),
            ("wds:http://localhost:1/a.tar --offline", FAILED, "offline"),
            ("hf-stream:a/b --offline", FAILED, "offline"),
            ("hf-stream:a", WRONG, "a"),
            ("imagenet", WRONG, "imagenet"),
            ("hf:a/b@main --offline", FAILED, "a/b"),
            (f"folder:{'n' * 300}", FAILED, "nnn"),
            ("folder:pho\0tos", FAILED, "tos"),
            ("digits,objects", WRONG, "digits"),
            ("DIGITS", WRONG, "digits"),
            ("mini", WRONG, "mini"),
        ]
    ),
    *(
        Case(f"extract scratch -o new --ancestry {name}", code, (word,))
        for name, code, word in [
            ("photos", FAILED, "photos"),
            ("photos/red/0.png", FAILED, "0.png"),
            ("timm:", WRONG, "timm:"),
            ("timm:vit", WRONG, "vit"),
            ("hf:a", WRONG, "'hf'"),
            ("''", WRONG, "empty"),
            ("model/config.json", FAILED, "config.json"),
            ("hf-hub:a/b --offline", FAILED, "a/b"),
            ("timm:vit_tiny_patch16_224 --offline", FAILED, "vit_tiny_patch16_224"),
        ]
    ),
]

MORE_SIZES = (
    [
        Case(
            f"train --task folder:photos -o new --{name} {value}",
            WRONG,
            (f"{name.replace('-', '_')}", value),
        )
        for name, value in [
            ("image-size", str(10**9)),
            ("width", str(10**9)),
            ("layers", str(10**9)),
            ("heads", str(10**9)),
            ("patch-size", str(10**9)),
            ("registers", str(10**9)),
            ("mlp-ratio", "1e+30"),
            ("layers", "-1"),
            ("width", "0"),
            ("heads", "0"),
            ("image-size", "0"),
            ("patch-size", "0"),
            ("registers", "-1"),
            ("mlp-ratio", "-1"),
        ]
    ]
    + [
        Case(f"train --task folder:photos -o new --{name} {value}", WRONG, (f"--{name}", value))
        for name, value in [
            ("layers", "2.5"),
            ("mlp-ratio", "nan"),
            ("pool", "attic"),
            ("layer-scale", "tiny"),
            ("init", "x"),
        ]
    ]
    + [
        Case(f"expand {kind} -o new {options}", WRONG, words)
        for kind in ("learngene", "scratched")
        for options, words in [
            (f"--layers {10**9}", (f"{10**9}",)),
            (f"--classes {10**12}", (f"{10**12}",)),
            (f"--image-size {10**9}", (f"{10**9}",)),
            ("--image-size 15", ("15",)),
            ("--image-size 0", ("0",)),
            ("--classes -2", ("-2",)),
            ("--layers ''", ("--layers",)),
            ("--layers 3,4", ("'3,4'",)),
            ("--heads 0", ("0",)),
            ("--width -32", ("-32",)),
            ("--mlp-ratio 0", ("0",)),
            ("--max-params 0", ("0",)),
            ("--max-params inf", ("'inf'",)),
            ("--max-latency 0s", ("0s",)),
            ("--max-flops 1e400", ("1e400",)),
            ("--max-latency nan", ("nan",)),
            ("--control shuffle", ("'shuffle'",)),
            ("--layers 2 --layers x", ("'x'",)),
        ]
    ]
)

MORE_FILES = [
    Case(f"{line} -o new", FAILED, (word,), change)
    for line, place in [
        ("expand learngene", "learngene"),
        ("finetune model --task folder:photos", "model"),
    ]
    for word, change in [
        ("config.json", fifo(f"{place}/config.json")),
        ("model.safetensors", fifo(f"{place}/model.safetensors")),
        ("config.json", write(f"{place}/config.json", b"")),
        ("model.safetensors", write(f"{place}/model.safetensors", b"")),
        ("config.json", both(remove(f"{place}/config.json"), folder(f"{place}/config.json"))),
        (
            "model.safetensors",
            both(remove(f"{place}/model.safetensors"), folder(f"{place}/model.safetensors")),
        ),
        (
            "config.json",
            both(remove(f"{place}/config.json"), link(f"{place}/config.json", "config.json")),
        ),
        ("config.json", write(f"{place}/config.json", "null")),
        ("config.json", write(f"{place}/config.json", '{"a": NaN}')),
        ("config.json", flip(f"{place}/config.json", 0)),
        ("config.json", write(f"{place}/config.json", '{"a": ' + "9" * 5000 + "}")),
        ("safetensors", flip(f"{place}/model.safetensors", 0)),
    ]
]
MORE_CONFIGS = (
    [Case("expand learngene -o new", FAILED, ("config.json",), write(CONFIG, "{}"))]
    + [
        Case(
            "expand learngene -o new",
            FAILED,
            (key.rpartition("__")[2],),
            edit(CONFIG, **{key: value}),
        )
        for key in (
            "spec__layers",
            "spec__width",
            "spec__heads",
            "spec__classes",
            "spec__image_size",
            "spec__patch_size",
        )
        for value in (-1, 0, "3", None, 1.5, [3], 10**18)
        if (key, value) != ("spec__classes", 0)  # a model without a head
    ]
    + [
        Case("expand learngene -o new", FAILED, (key,), edit(CONFIG, **{key: value}))
        for key in ("method", "spec", "details", "ancestries", "format", "preset", "task")
        for value in (-1, ["x"], "../x", True)
        if not (key in ("task", "preset") and value == "../x")
    ]
)

RED = ["red", "blue"] * 10
OWN_DATA = [
    Case(f"finetune model {BRIEF} -o new --task {task}", FAILED, words, change, leaves=leaves)
    for task, words, change, leaves in [
        (
            "folder:photos",
            ("photos/red", "0 images"),
            both(remove("photos/red"), folder("photos/red")),
            "",
        ),
        ("folder:~nosuchuser/photos", ("~nosuchuser",), None, ""),
        ("parquet:~nosuchuser/t", ("~nosuchuser",), None, ""),
        ("wds:~nosuchuser/t.tar", ("~nosuchuser",), None, ""),
        (
            "folder:photos",
            ("\\udcff", "UTF-8"),
            lambda root: (root / "photos/red").rename(
                os.fsdecode(os.fsencode(root / "photos") + b"/\xff")
            ),
            "",
        ),
        ("folder:photos", ("photos",), both(remove("photos"), folder("photos")), ""),
        (
            "folder:photos",
            ("class",),
            both(remove("photos/red"), write("photos/blue.png", b"x")),
            "",
        ),
        (
            "folder:photos",
            ("photos/extra", "0 images", "photos/train"),
            both(folder("photos/train"), folder("photos/extra")),
            "",
        ),
        ("folder:photos", ("red", "cannot be read"), every_image(lambda data: b""), "new.run"),
        ("folder:photos", ("red", "cannot be read"), every_image(halve), "new.run"),
        ("folder:photos", ("red", "cannot be read"), every_image(halve, "jpeg"), "new.run"),
        ("folder:photos", ("red", "pixels"), every_image(enormous), "new.run"),
        (
            "folder:photos",
            ("red", "missing or not a file"),
            lambda root: [fifo(f"photos/red/{i}.png")(root) for i in range(8)],
            "new.run",
        ),
        (
            "folder:photos",
            ("red", "link photos/red/0.png"),
            lambda root: [
                both(remove(f"photos/red/{i}.png"), link(f"photos/red/{i}.png", "nowhere"))(root)
                for i in range(8)
            ],
            "new.run",
        ),
        (
            "folder:photos",
            ("red", "link photos/red/0.png"),
            lambda root: [
                both(remove(f"photos/red/{i}.png"), link(f"photos/red/{i}.png", f"{i}.png"))(root)
                for i in range(8)
            ],
            "new.run",
        ),
        (
            "parquet:t.parquet",
            ("t.parquet has no rows",),
            parquet("t.parquet", {"image": [], "label": []}),
            "",
        ),
        ("parquet:t.parquet", ("label",), parquet("t.parquet", {"image": RED}), ""),
        ("parquet:t.parquet", ("image",), parquet("t.parquet", {"label": RED}), ""),
        (
            "parquet:t.parquet",
            ("one class",),
            parquet("t.parquet", {"image": RED, "label": ["red"] * 20}),
            "",
        ),
        (
            "parquet:t.parquet",
            ("row 1", "empty"),
            parquet("t.parquet", {"image": RED, "label": ["red", None] * 10}),
            "",
        ),
        (
            "parquet:t.parquet",
            ("t.parquet", "features"),
            parquet(
                "t.parquet",
                {"image": RED, "label": RED},
                {"image": {"_type": "Image"}, "label": {"_type": "Nonsense"}},
            ),
            "",
        ),
        (
            "parquet:t.parquet",
            ("t.parquet", "features"),
            parquet("t.parquet", {"image": RED, "label": RED}, "{"),
            "",
        ),
        (
            "parquet:t.parquet",
            ("t.parquet", "features"),
            parquet("t.parquet", {"image": RED, "label": RED}, [1]),
            "",
        ),
        (
            "parquet:t.parquet",
            ("t.parquet",),
            parquet(
                "t.parquet",
                {"image": RED, "label": RED},
                {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": 7}},
            ),
            "",
        ),
        (
            "parquet:t.parquet",
            ("t.parquet", "duplicated"),
            parquet(
                "t.parquet",
                {"image": RED, "label": [0, 1] * 10},
                {
                    "image": {"_type": "Image"},
                    "label": {"_type": "ClassLabel", "names": ["red", "red"]},
                },
            ),
            "",
        ),
        (
            "parquet:t.parquet",
            ("label", "7"),
            parquet(
                "t.parquet",
                {"image": RED, "label": [0, 7] * 10},
                {
                    "image": {"_type": "Image"},
                    "label": {"_type": "ClassLabel", "names": ["red", "blue"]},
                },
            ),
            "",
        ),
        *(
            (
                "parquet:t.parquet",
                ("t.parquet",),
                both(parquet("t.parquet", {"image": RED, "label": RED}), change),
                "",
            )
            for change in (
                cut("t.parquet", 0.5),
                flip("t.parquet", -6),
                flip("t.parquet", 30),
                write("t.parquet", b""),
            )
        ),
        ("parquet:t.parquet", ("t.parquet",), fifo("t.parquet"), ""),
        (
            "parquet:data",
            ("no split",),
            both(
                folder("data"),
                *(
                    parquet(f"data/{name}.parquet", {"image": RED, "label": RED})
                    for name in ("train", "x")
                ),
            ),
            "",
        ),
        (
            "wds:t.tar",
            "30000000 bytes",
            tar("t.tar", ("1.png", None), ("1.cls", b"7" * 30_000_000)),
            "",
        ),
        (
            "wds:t.tar",
            ("t.tar",),
            tar("t.tar", ("1.png", None), ("1.cls", b"1"), spoil=set_size(b"\x80" + b"\x7f" * 11)),
            "",
        ),
        (
            "wds:t.tar",
            ("t.tar",),
            tar("t.tar", ("1.png", None), ("1.cls", b"1"), spoil=set_size(b"\xff" * 12)),
            "",
        ),
        (
            "wds:t.tar",
            ("t.tar",),
            tar("t.tar", ("1.png", None), ("1.cls", b"1"), spoil=set_size(b"77777777777\0")),
            "",
        ),
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
        (
            "wds:t.tar",
            ("pickle",),
            tar("t.tar", ("1.png", None), ("1.cls", b"1"), ("1.pyd", b"x")),
            "",
        ),
        (
            "wds:t.tar",
            ("twice",),
            tar("t.tar", ("1.png", None), ("1.png", None), ("1.cls", b"1")),
            "",
        ),
        ("wds:t.tar", ("one class",), tar("t.tar", ("1.png", None), ("1.cls", b"1")), ""),
    ]
]

BENCH = "bench folder:photos --ancestry ancestry --layers 3 --epochs 1 --seeds 1 --images 8 -o new"
BENCHES = [
    Case(f"{BENCH} {options}", code, words)
    for options, code, words in [
        *(
            (f"--set {text}", WRONG, (word,))
            for text, word in [
                ("lsamd", "METHOD.NAME=VALUE"),
                ("=", "METHOD.NAME=VALUE"),
                ("lsamd.top", "METHOD.NAME=VALUE"),
                (".top=1", "no method"),
                ("lsamd.=1", "no setting named ''"),
                ("lsamd.top=", "--set lsamd.top: ''"),
                ("lsamd.top=x", "'x' is not an integer"),
                ("lsamd.top=1.5", "'1.5' is not an integer"),
                ("lsamd.top=[1]", "'[1]' is not an integer"),
                ("lsamd.top={}", "'{}'"),
                ("lsamd.top=-1", "out of range"),
                ("lsamd.keep=1,two", "'two'"),
                ("lsamd.keep=0", "out of range"),
                ("lsamd.lr=nan", "finite"),
                ("lsamd.lr=true", "'true'"),
                ("lsamd.shared=perhaps", "'perhaps'"),
                ("lsamd.routing=3", "'3'"),
                ("lsamd.lr=1e999", "finite"),
                ("lsamd.lr=1e30", "at most 10"),
                ("lsamd.training.lr=1", "training.lr"),
                ("lsamd.augment=blur", "'blur'"),
                (f"lsamd.top={'9' * 5000}", "--set lsamd.top"),
            ]
        ),
        *(
            (f"--size {text}", WRONG, (word,))
            for text, word in [
                ("low", "NAME=VALUE"),
                ("=3", "NAME=VALUE"),
                ("low=", "NAME=VALUE"),
                ("low=3", "low"),
                ("low=[[", "low"),
                ("priority=x", "priority"),
                ("=", "NAME=VALUE"),
                ("low=3,,", "NAME=VALUE"),
            ]
        ),
        ("--layers 99", WRONG, ("99",)),
        ("--layers 0", WRONG, ("0",)),
        ("--layers=-3", WRONG, ("-3",)),
        ("--layers 3.5", WRONG, ("'3.5'",)),
        ("--epochs=-1", WRONG, ("epochs", "-1")),
        ("--epochs x", WRONG, ("'x'",)),
        ("--seeds=-1", WRONG, ("--seeds",)),
        ("--seeds 1e9", WRONG, ("--seeds",)),
        ("--width 7", WRONG, ("7",)),
        ("--tune 0", WRONG, ("above 0",)),
        ("--tune=-1", WRONG, ("above 0",)),
        ("--tune x", WRONG, ("'x'",)),
        ("--tune nan", WRONG, ("nan",)),
        ("--tune inf", WRONG, ("inf",)),
        ("--seed 1000 --tune 1e-3", WRONG, ("1000",)),
        ("--budget huge", WRONG, ("'huge'", "'quick'")),
        ("--preset huge", WRONG, ("huge",)),
        ("--method x", WRONG, ("'x'",)),
        ("--method scratch", WRONG, ("arm of every grid",)),
        ("--task x", WRONG, ("'x'",)),
        ("--split train", WRONG, ("train",)),
        ("--workers 0", WRONG, ("--workers",)),
        ("--workers 1000000", WRONG, ("--workers", "1000000")),
        ("--threads 100000", WRONG, ("--threads",)),
        ("--claim nosuch", WRONG, ("leave SUITE out",)),
        ("--ancestry nowhere", WRONG, ("no file or folder nowhere",)),
        ("--ancestry bundled --ancestry bundled", WRONG, ("not 3",)),
        ("--device tpu", WRONG, ("tpu",)),
        ("--leave-out --extract-task folder:photos", WRONG, ("photos",)),
        ("--report", WRONG, ("no results.jsonl in new",)),
        ("--images 0", WRONG, ("--images", "0")),
        ("--batch-size 0", WRONG, ("--batch-size",)),
        ("--batch-size 5 --accumulate 2", WRONG, ("accumulate",)),
        ("--ray nonsense://x", FAILED, ("Ray",)),
        ("--workers 2 --ray local", WRONG, ("exclude",)),
        ("-o photos/red/0.png", FAILED, ("0.png",)),
        (f"-o {'n' * 300}", FAILED, ("too long",)),
    ]
] + [
    Case(
        f"{BENCH} {options}", FAILED, (word,), write("new/results.jsonl", 2 * content), leaves="new"
    )
    for options in ("", "--report")
    for word, content in [
        ("results.jsonl", b"{}\n"),
        ("results.jsonl", b"null\n"),
        ("results.jsonl", b"\xff\n"),
        ("results.jsonl", b"x\n"),
        ("results.jsonl", b"[" * 100_000 + b"\n"),
        ("results.jsonl", b'{"key": 1}\n'),
    ]
]

OTHERS = [
    Case(line, code, (word,), change)
    for line, code, word, change in [
        ("list methods extra", WRONG, "extra", None),
        ("completion", WRONG, "", None),
        ("--nonsense", WRONG, "--nonsense", None),
        ("plot nosuch", WRONG, "nosuch", None),
        ("plot model", FAILED, "model", None),
        ("plot learngene -o new.gif", WRONG, ".png or .svg", None),
        ("plot learngene -o photos", WRONG, "photos", None),
        ("plan scratch --preset x", WRONG, "'x'", None),
        ("plan lsamd --max-params 3", WRONG, "the smallest has", None),
        ("plan lsamd --layers x", WRONG, "'x'", None),
        ("plan lsamd --ancestry photos", FAILED, "photos", None),
        ("show learngene --split x", WRONG, "'x'", None),
        ("show learngene --convention x", WRONG, "'x'", None),
        ("doctor --task nosuch", WRONG, "nosuch", None),
        ("doctor extra", WRONG, "extra", None),
        ("doctor --hub --offline", WRONG, "--offline forbids; leave out one of them", None),
        ("demo --workers 0", WRONG, "--workers", None),
        ("demo --threads 0", WRONG, "--threads", None),
        ("demo extra", WRONG, "extra", None),
        ("demo -o photos/red/0.png", FAILED, "0.png", None),
        ("evaluate model --task folder:photos --offline=1", WRONG, "--offline", None),
        ("finetune model --task folder:photos --image-size 33", WRONG, "patches of", None),
        ("finetune model --task folder:photos --layers 2", WRONG, "--layers", None),
    ]
]
ENVIRONMENT = [
    Case("evaluate model --task folder:photos", WRONG, (name, value), environment={name: value})
    for name, value in [("WORLD_SIZE", "abc"), ("WORLD_SIZE", "-1"), ("WORLD_SIZE", "1e3")]
] + [
    Case(
        "evaluate model --task folder:photos",
        FAILED,
        ("MASTER_ADDR",),
        environment={"WORLD_SIZE": "2"},
    ),
    Case("list methods", WRONG, ("RANK",), environment={"WORLD_SIZE": "2", "RANK": "7"}),
    Case("bench folder:photos", WRONG, ("torchrun",), environment={"WORLD_SIZE": "2", "RANK": "0"}),
]

# `convert`, which reads a model as every verb does, and writes it for other packages.
CONVERTED = "converted/open_clip_config.json"
CONVERSIONS = [
    Case(f"convert model --no-head {options} -o new", code, words, change)
    for options, code, words, change in [
        ("--format onnx", WRONG, ("no format named 'onnx'", "known: dinov2"), None),
        ("--format", WRONG, ("too many arguments", "see lgzoo"), None),
        ("--format transformers:bert", WRONG, ("'bert'", "transformers"), None),
        ("--format dinov2:vit", WRONG, ("dinov2",), None),
        ("--formt dinov2", WRONG, ("no option named --formt", "--format"), None),
        ("--format timm:vit", WRONG, ("timm",), None),
        ("", WRONG, ("not known here", "--format"), None),
        ("--format dinov2 --images folder:photos", WRONG, ("add --keep-interface",), None),
        ("--format dinov2 --ancestry nowhere", WRONG, ("nowhere",), None),
        ("--format dinov2 --keep-interface", WRONG, ("no ancestry model", "--ancestry"), None),
        ("--format dinov2", FAILED, ("model.safetensors",), cut(MODEL, 0.5)),
        ("--format dinov2", FAILED, ("model.safetensors",), write(MODEL, PICKLE)),
        ("--format dinov2", FAILED, ("config.json",), write(MODEL_CONFIG, "[]")),
        ("--format dinov2", FAILED, ("attn.qkv.weight",), retensor(MODEL, poison)),
    ]
] + [
    Case("convert model --format dinov2 -o new", WRONG, ("no head", "--no-head")),
    Case("convert model --no-head --format dinov2 -o model", FAILED, ("model already exists",)),
    Case("convert model --no-head --format dinov2 -o .", FAILED, ("already exists", "-o new-2")),
    Case("convert model --no-head --format dinov2 -o . --force", FAILED, ("the current folder",)),
    Case("convert learngene --format dinov2", WRONG, ("is a learngene, not a model",)),
    Case("convert photos --format dinov2", FAILED, ("photos", "no config.json and no weights")),
    Case("convert nowhere --format dinov2", WRONG, ("there is no model at nowhere",)),
    Case("convert model more --format dinov2", WRONG, ("too many arguments", "see lgzoo")),
    Case(
        "convert converted --format timm -o new",
        FAILED,
        ("open_clip_config.json", "model_cfg is list"),
        write(CONVERTED, '{"model_cfg": []}'),
    ),
    Case(
        "convert converted --format timm -o new",
        WRONG,
        ("open_clip's own class with attentional_pool",),
        write(
            CONVERTED,
            '{"model_cfg": {"embed_dim": 8, "vision_cfg": {"attentional_pool": true}}}',
        ),
    ),
    Case(
        "convert converted --format timm -o new",
        FAILED,
        ("head_width 7 does not divide",),
        write(
            CONVERTED,
            '{"model_cfg": {"embed_dim": 8, "vision_cfg": {"width": 64, "head_width": 7}}}',
        ),
    ),
]

EVERY_CASE = [
    *CASES,
    *CONVERSIONS,
    *JOBS,
    *NAMES,
    *MORE_SIZES,
    *MORE_FILES,
    *MORE_CONFIGS,
    *OWN_DATA,
    *BENCHES,
    *OTHERS,
    *ENVIRONMENT,
]
