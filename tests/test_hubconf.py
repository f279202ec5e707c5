"""torch.hub from a bare checkout: nothing of ours installed, only torch, timm, safetensors and
huggingface_hub there.

Each story runs in a process of its own that starts in an empty folder; `STORY` is that of most
tests.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from learngene_zoo.torch_hub import list_entries

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("hubconf.py", "pyproject.toml", "learngene_zoo", "plugins", "cards")
OWNER, REF = "somebody", "v0.1.0"
Told = dict[str, Any]  # what a story says, by its names

# Blocks what a bare machine does not have, and takes every installed copy of ours off the path.
BARE = """
import sys

BLOCKED = ("click", "rich", "datasets", "accelerate", "sklearn", "matplotlib", "pandas", "pyarrow")


class Others:
    # Finds what the usual finders find, but nothing that is blocked.

    def __init__(self, finders):
        self.finders = finders

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in BLOCKED:
            return next(filter(None, (finder.find_spec(name, path, target) for finder in self.finders)), None)

    def find_distributions(self, *context):
        for finder in self.finders:
            yield from getattr(finder, "find_distributions", lambda *_: ())(*context)


ours = [f for f in sys.meta_path if "editable" in f"{type(f).__module__} {getattr(f, '__module__', '')}"]
sys.meta_path[:] = [Others([f for f in sys.meta_path if f not in ours])]
# The virtual environment may lie inside the checkout; its packages stay.
sys.path[:] = [p for p in sys.path if p not in ("REPOSITORY", "REPOSITORY/plugins")]
for name in list(sys.modules):
    if name.split(".")[0] in ("learngene_zoo", "lgzoo_lsamd", "lgzoo_pool", "lgzoo_baselines"):
        del sys.modules[name]
import torch
torch.set_num_threads(1)
""".replace("REPOSITORY", str(ROOT))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub folder that holds this checkout as if torch.hub had downloaded it."""
    hub = tmp_path_factory.mktemp("hub")
    copy = hub / f"{OWNER}_learngene_zoo_{REF}"
    copy.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copy / part)
    return hub


@pytest.fixture(scope="module")
def learngene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small LSAMD learngene of 4 layers that keeps the blocks 1 and 3."""
    from learngene_zoo.artifacts.descendant import assemble
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.artifacts.records import LearngeneConfig
    from learngene_zoo.families.vit.spec import ViTSpec
    from lgzoo_lsamd.blocks import select_base_blocks

    spec = ViTSpec(layers=4, width=16, heads=2, classes=5, image_size=16, patch_size=8)
    config = LearngeneConfig(method="lsamd", spec=spec, details={"kept": [1, 3]})
    state = select_base_blocks(assemble(spec, {}, seed=5).state, spec, [1, 3])
    return Learngene(config=config, state=state).save(tmp_path_factory.mktemp("gene") / "learngene")


def story(code: str, cache: Path, learngene: Path, folder: Path) -> Told:
    """What the code puts into `told`. It sees COPY, HUB, GENE and OWNER_REF."""
    names = {
        "HUB": str(cache),
        "COPY": str(next(cache.iterdir())),
        "GENE": str(learngene),
        "NAME": f"{OWNER}/learngene_zoo:{REF}",
    }
    head = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    full = BARE + head + "told = {}\ntorch.hub.set_dir(HUB)\n" + textwrap.dedent(code)
    full += "\nimport json; print('TOLD', json.dumps(told))\n"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", full],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    line = next(line for line in ran.stdout.splitlines() if line.startswith("TOLD "))
    return json.loads(line.removeprefix("TOLD "))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learngene of `first_k` from a GPT-2 of 3 layers."""
    from dataclasses import replace

    from learngene_zoo.families.family import load_family
    from learngene_zoo.method.installed import METHODS
    from learngene_zoo.runs.run import Run
    from learngene_zoo.testing import make_tiny_ancestry

    ancestry = make_tiny_ancestry(spec=load_family("gpt2").examples[0])
    learngene = METHODS.load("first_k").extractor([ancestry], [], Run())
    learngene = replace(learngene, files=ancestry.files).with_config(method="first_k")
    return learngene.save(tmp_path_factory.mktemp("gene") / "texts")


ENTRIES = [
    *list_entries(),
    *(f"descendant {card}" for card in ("closed_form-mini", "tal-mini", "pool-mini")),
]
STORY = f"""
import warnings
path = list(sys.path)

asked = dict(trust_repo=True, skip_validation=True)
told["list"] = torch.hub.list(NAME, **asked)
told["help"] = [torch.hub.help(NAME, entry, **asked) for entry in ("lsamd_vit", "descendant", "scratch_vit")]
told["cached layers"] = len(torch.hub.load(NAME, "lsamd_vit", layers=2, learngene=GENE, **asked).blocks)
for key, entry, given in (
    ("unknown", "nothing_vit", {{}}),
    ("not shipped", "distillation_vit", {{}}),
    ("task", "lsamd_vit", dict(task="digitz", learngene=GENE)),
    ("method", "scratch_vit", dict(learngene=GENE)),
):
    try:
        torch.hub.load(NAME, entry, **given, **asked)
    except Exception as error:
        told[key] = [type(error).__name__, str(error)]

model = torch.hub.load(COPY, "lsamd_vit", task="digits", layers=3, learngene=GENE, source="local")
told["class"] = type(model).__module__ + "." + type(model).__name__
told["shape"] = list(model(torch.zeros(2, 3, 16, 16)).shape)
told["layers"] = len(model.blocks)
told["path unchanged"] = path == sys.path
again = torch.hub.load(COPY, "descendant", GENE, depth=3, num_classes=10, source="local", seed=0)
told["same"] = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))
scratch = torch.hub.load(COPY, "lsamd_vit", pretrained=False, layers=3, learngene=GENE, source="local")
told["scratch classes"] = scratch.num_classes  # nobody named any, so there is no head
told["scratch differs"] = not torch.equal(scratch.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight)
other = torch.hub.load(COPY, "lsamd_vit", layers=2, seed=1, learngene=GENE, source="local")
told["inherited"] = torch.equal(other.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight)
import lgzoo_baselines.trained.distillation  # a plugin that nothing has imported yet, after load has returned
from learngene_zoo import lifecycle
told["from"] = sorted({{sys.modules[n].__file__.startswith(COPY) for n in sys.modules if n.startswith(("learngene_zoo", "lgzoo_"))}})
told["finders"] = sum(hasattr(finder, "learngene_zoo_checkout") for finder in sys.meta_path)
told["blocked"] = [name for name in BLOCKED if name in sys.modules]
torch.save(model, "model.pt")

warnings.simplefilter("ignore")
for name in {ENTRIES!r}:
    entry, _, card = name.partition(" ")
    try:
        model = torch.hub.load(COPY, entry, *filter(None, [card]), task="digits", source="local")
        kinds = [kind.__name__ for kind in type(model).__mro__]
        kind = "VisionTransformer" if "VisionTransformer" in kinds else kinds[0]
        told["entry " + name] = [kind, list(model(torch.zeros(1, 3, 32, 32)).shape)]
    except Exception as error:
        told["entry " + name] = repr(error)
told["blocked by entries"] = [name for name in BLOCKED if name in sys.modules]

if TEXTS is not None:
    model = torch.hub.load(COPY, "descendant", TEXTS, task="sentiment", layers=2, source="local")
    told["class of texts"] = type(model).__module__ + "." + type(model).__name__
    encoded = model.tokenizer.encode_batch(["w5 w6", "w7 w8 w9"])
    ids = torch.tensor([text.ids for text in encoded])
    told["shape of texts"] = list(model(input_ids=ids).logits.shape)
    told["labels of texts"] = model.label_names
    told["blocked by texts"] = [name for name in BLOCKED if name in sys.modules]
"""
HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the story of `told` runs."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="module")
def told(cache: Path, learngene: Path, folder: Path, request: pytest.FixtureRequest) -> Told:
    """What `STORY` says."""
    texts = str(request.getfixturevalue("texts")) if HAS_TRANSFORMERS else None
    return story(f"TEXTS = {texts!r}\n{STORY}", cache, learngene, folder)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="the extra `text` is not installed")
def test_a_bare_checkout_builds_models_of_texts(told: Told) -> None:
    assert {name: value for name, value in told.items() if name.endswith(" texts")} == {
        "class of texts": "transformers.models.gpt2.modeling_gpt2.GPT2ForSequenceClassification",
        "shape of texts": [2, 2],
        "labels of texts": ["bad", "good"],
        "blocked by texts": [],
    }


@pytest.mark.slow
def test_a_bare_checkout_builds_plain_timm_models(told: Told, folder: Path) -> None:
    expected = {
        "class": "timm.models.vision_transformer.VisionTransformer",
        "shape": [2, 10],
        "layers": 3,
        "path unchanged": True,
        "same": True,
        "scratch classes": 0,
        "scratch differs": True,
        "inherited": True,
        "from": [True],
        "finders": 1,
        "blocked": [],
    }
    assert {name: told[name] for name in expected} == expected
    code = (
        "import sys, torch; m = torch.load('model.pt', weights_only=False); print(m(torch.zeros(1,"
        " 3, 16, 16)).shape[1])"
    )
    code += "; assert not any(name.startswith(('learngene_zoo', 'lgzoo_')) for name in sys.modules)"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert ran.stdout.strip() == "10", ran.stderr


@pytest.mark.slow
def test_list_and_help_and_load_work_offline_from_the_hub_cache(told: Told) -> None:
    assert {"lsamd_vit", "descendant", "scratch_vit"} <= set(told["list"])
    assert all(name.endswith("_vit") or name == "descendant" for name in told["list"])
    assert all("learngene" in text for text in told["help"])
    assert told["cached layers"] == 2
    assert not {"distillation_vit", "pretrain_finetune_vit"} & set(told["list"])
    for key, entry in (("unknown", "nothing_vit"), ("not shipped", "distillation_vit")):
        kind, message = told[key]
        assert kind == "RuntimeError"
        assert entry in message
    assert "did you mean digits?" in told["task"][1]
    assert "learngene of lsamd, not of scratch" in told["method"][1]


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_works_with_the_declared_packages_alone(told: Told, name: str) -> None:
    assert told[f"entry {name}"] == ["VisionTransformer", [1, 10]]


def test_no_entry_imports_a_package_that_is_not_declared(told: Told) -> None:
    assert told["blocked by entries"] == []


def test_every_entry_that_is_listed_is_one_that_is_loaded_here() -> None:
    listed = {name for name in dir(importlib.import_module("hubconf")) if name.endswith("_vit")}
    assert listed == set(list_entries())


@pytest.mark.slow
def test_a_copy_that_is_loaded_already_is_used_whole_and_said_once(
    cache: Path, learngene: Path, tmp_path: Path
) -> None:
    told = story(
        f"""
        import warnings
        sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "plugins")!r}]
        import lgzoo_baselines
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                model = torch.hub.load(COPY, "lsamd_vit", layers=2, learngene=GENE, source="local")
        told["said"] = sum("that copy is used" in str(warning.message) for warning in caught)
        told["copies"] = sorted({{sys.modules[n].__file__.startswith(COPY) for n in sys.modules if n.startswith(("learngene_zoo", "lgzoo_"))}})
        """,
        cache,
        learngene,
        tmp_path,
    )
    assert told == {"said": 1, "copies": [False]}


def test_hubconf_imports_nothing_but_the_standard_library() -> None:
    code = f"""
import sys, runpy
runpy.run_path({str(ROOT / "hubconf.py")!r})
print([name for name in ("torch", "timm", "numpy", "click", "learngene_zoo") if name in sys.modules])
"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True
    )
    assert ran.stdout.strip() == "[]", ran.stderr
