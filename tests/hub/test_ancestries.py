"""Ancestry models from repositories without timm's config.json: those of open_clip and of
transformers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save
from standin import StandIn

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.errors import BadFile, Unavailable, WrongCall
from learngene_zoo.hub.client import Repository, fetch_from_hub
from learngene_zoo.pretrained import from_open_clip as open_clip
from learngene_zoo.pretrained import from_transformers as foreign
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec
from learngene_zoo.pretrained.timm_model import open_model

DATA = Path(__file__).parents[1] / "data" / "transformers"

NAME = "vit_base_patch16_siglip_224"
TINY = {"depth": 2, "embed_dim": 32, "num_heads": 2, "patch_size": 8, "img_size": 32}


def config(**vision: object) -> bytes:
    tower = {
        "image_size": 32,
        "timm_pool": "map",
        "timm_proj": "none",
        "timm_model_kwargs": TINY,
        **vision,
    }
    return json.dumps(
        {"model_cfg": {"embed_dim": 32, "vision_cfg": tower}, "preprocess_cfg": {}}
    ).encode()


@pytest.mark.parametrize("file", open_clip.WEIGHTS)
def test_a_repository_of_open_clip_opens_and_is_pinned(hub: StandIn, file: str) -> None:
    model = timm.create_model(NAME, num_classes=0, **TINY).eval()
    weights = save({f"visual.trunk.{name}": tensor for name, tensor in model.state_dict().items()})
    card = b"---\nlicense: apache-2.0\n---\n"
    commit = hub.put(
        "org/siglip",
        {open_clip.CONFIG: config(timm_model_name=NAME), file: weights, "README.md": card},
    )
    ancestry = open_ancestry("hf-hub:org/siglip")
    assert (ancestry.record.revision, ancestry.record.licence) == (commit, "apache-2.0")
    images_BCHW = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(ancestry.model()(images_BCHW), model(images_BCHW))
    before = len(hub.requests)
    assert read_ancestry_spec("hf-hub:org/siglip", offline=True) == ancestry.spec
    assert open_ancestry("hf-hub:org/siglip", offline=True).identity == ancestry.identity
    assert len(hub.requests) == before


def test_of_towers_of_its_own_the_twin_in_timm_is_named_before_weights_are_fetched(
    hub: StandIn,
) -> None:
    name = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
    theirs = {
        "config.json": b'{"model_type": "clip"}',
        open_clip.CONFIG: config(layers=12, width=768, attentional_pool=True),
    }
    hub.put(name, {**theirs, open_clip.WEIGHTS[0]: b"never read"})
    with pytest.raises(
        WrongCall, match=r"open_clip's own class.* timm:vit_base_patch32_clip_224\.laion2b "
    ):
        open_ancestry(f"hf-hub:{name}")
    assert not any("safetensors" in str(request) for request in hub.requests)


def test_a_repository_without_any_config_lacks_timms(hub: StandIn) -> None:
    hub.put("org/empty", {"README.md": b"# Nothing\n"})
    with pytest.raises(BadFile, match=r"the Hub repository org/empty has no config\.json"):
        open_ancestry("hf-hub:org/empty")


def test_a_model_of_transformers_without_a_preprocessor_opens_offline_as_online(
    hub: StandIn,
) -> None:
    files = {
        name: (DATA / "vit" / name).read_bytes() for name in ("config.json", "model.safetensors")
    }
    hub.put("org/vit", files)
    ancestry = open_ancestry("hf-hub:org/vit")
    assert (ancestry.record.mean, ancestry.record.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    before = len(hub.requests)
    again = open_ancestry("hf-hub:org/vit", offline=True)
    assert (again.record.mean, again.identity) == (ancestry.record.mean, ancestry.identity)
    assert len(hub.requests) == before
    model = open_model("hf-hub:org/vit", offline=True)  # a model of every command, too
    assert isinstance(model, Descendant)
    assert model.spec == ancestry.spec


@pytest.mark.parametrize("pinned", [True, False])
def test_a_list_of_all_files_says_offline_that_there_is_no_preprocessor(
    hub: StandIn, pinned: bool
) -> None:
    """Such a list is stored by `snapshot_download`, as of `hf download org/vit`."""
    from huggingface_hub import snapshot_download

    files = {
        name: (DATA / "vit" / name).read_bytes() for name in ("config.json", "model.safetensors")
    }
    commit = hub.put("org/vit", files)
    snapshot_download("org/vit")
    before = len(hub.requests)
    source = f"hf-hub:org/vit@{commit}" if pinned else "hf-hub:org/vit"
    assert open_ancestry(source, offline=True).record.mean == (0.5, 0.5, 0.5)
    assert len(hub.requests) == before


def test_offline_a_preprocessor_that_nobody_asked_for_may_exist(hub: StandIn) -> None:
    files = {
        name: (DATA / "vit" / name).read_bytes() for name in ("config.json", "model.safetensors")
    }
    commit = hub.put("org/vit", {**files, foreign.PREPROCESSOR: b'{"image_mean": [0.1, 0.2, 0.3]}'})
    for name in files:
        fetch_from_hub(Repository("org/vit", commit), name, offline=False)
    with pytest.raises(
        Unavailable,
        match=r"^preprocessor_config\.json of org/vit.* not cached.* run once while online$",
    ):
        open_ancestry(f"hf-hub:org/vit@{commit}", offline=True)


@pytest.mark.parametrize("kind", ["dinov2_with_registers", "ijepa", "timm_wrapper", "deit_teacher"])
def test_a_repository_opens_as_the_folder_does(hub: StandIn, kind: str) -> None:
    files = {
        name: (DATA / kind / name).read_bytes() for name in ("config.json", "model.safetensors")
    }
    hub.put(f"org/{kind}", files)
    ancestry, want = open_ancestry(f"hf-hub:org/{kind}"), open_ancestry(str(DATA / kind))
    assert ancestry.identity == want.identity
    assert ancestry.record.left_out == want.record.left_out


def test_every_shard_of_a_repository_is_fetched_and_opens_offline(hub: StandIn) -> None:
    from safetensors.torch import load_file

    state = load_file(DATA / "vit" / "model.safetensors")
    names = sorted(state)
    shards = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    files = {file: save({name: state[name] for name in part}) for file, part in shards.items()}
    places = {name: file for file, part in shards.items() for name in part}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    files["config.json"] = (DATA / "vit" / "config.json").read_bytes()
    hub.put("org/sharded", files)
    ancestry = open_ancestry("hf-hub:org/sharded")
    want = open_ancestry(str(DATA / "vit"))
    assert all(torch.equal(ancestry.state[name], want.state[name]) for name in want.state)
    assert open_ancestry("hf-hub:org/sharded", offline=True).identity == ancestry.identity
    evil = {
        **files,
        "model.safetensors.index.json": (
            json.dumps({"weight_map": {"a": "../evil.safetensors"}}).encode()
        ),
    }
    hub.put("org/evil", evil)
    with pytest.raises(BadFile, match=r"the shard of a is '\.\./evil\.safetensors'"):
        open_ancestry("hf-hub:org/evil")
