"""Ancestry models of timm and of the Hub: pinned, converted, refused. A local stand-in replaces the
Hub.
"""

import time
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import timm
import torch
from huggingface_hub import errors as hub
from safetensors.torch import save_file
from test_ancestry import SPEC, write_folder
from text_models_toy import BERT, write_tokenizer

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.errors import BadFile, Unavailable, WrongCall, ZooError
from learngene_zoo.families.tensors import get_shapes, initialise
from learngene_zoo.families.vit.names import ARCHITECTURES
from learngene_zoo.hub.client import Repository, fetch_from_hub, translate_hub_errors
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec
from learngene_zoo.storage import compute_sha256

IMAGES_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LocalHub:
    """Replaces `hf_hub_download`: repositories are folders in the layout of the Hub's cache."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked = root, []

    def repository(self, name: str) -> Path:
        folder = self.root / f"models--{name.replace('/', '--')}" / "snapshots" / COMMIT
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def __call__(
        self, repo_id: str, filename: str, *, revision: str | None, local_files_only: bool
    ) -> str:
        self.asked.append((repo_id, filename, revision, local_files_only))
        path = self.repository(repo_id) / filename
        if not path.is_file():
            raise (
                hub.LocalEntryNotFoundError("x")
                if local_files_only
                else hub.EntryNotFoundError("x")
            )
        return str(path)


@pytest.fixture
def local_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    fake = LocalHub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake)
    return fake


@pytest.mark.parametrize("offline", [False, True])
def test_a_hub_repository_is_pinned_to_its_commit(local_hub: LocalHub, offline: bool) -> None:
    folder = write_folder(local_hub.repository("somebody/vit"))
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# A model\n")
    ancestry = open_ancestry("hf-hub:somebody/vit@v1", offline=offline)
    assert (ancestry.spec, ancestry.record.revision, ancestry.record.licence) == (
        SPEC,
        COMMIT,
        "cc-by-4.0",
    )
    assert ancestry.record.sha256 == compute_sha256(folder / "model.safetensors")
    assert local_hub.asked[0] == ("somebody/vit", "config.json", "v1", offline)
    assert {asked[2] for asked in local_hub.asked[1:]} == {
        COMMIT
    }  # all of one commit, whatever the tag does meanwhile
    assert read_ancestry_spec("hf-hub:somebody/vit@v1", offline=offline) == SPEC


@pytest.mark.parametrize("offline", [False, True])
def test_a_model_of_texts_comes_with_its_tokenizer(local_hub: LocalHub, offline: bool) -> None:
    pytest.importorskip("transformers")
    folder = local_hub.repository("somebody/bert")
    assemble(BERT, {}, seed=0).model().save_pretrained(folder)
    write_tokenizer(folder)
    ancestry = open_ancestry("hf-hub:somebody/bert", offline=offline)
    assert (ancestry.record.revision, ancestry.spec) == (COMMIT, BERT.with_(pool="pooler"))
    assert sorted(ancestry.files) == ["tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        (None, "unknown"),
        ("# no front matter", "unknown"),
        ("---\ntags: [a]\n---\n", "unknown"),
        ("---\nlicense: other\nlicense_name: house\n---\n", "house"),
        ("---\nlicense: [mit, bsd]\n---\n", "unknown"),
        ("---\n- a\n- b\n---\n", "unknown"),
        ("---\nlicense: [\n---\n", "unknown"),
    ],
)
def test_the_licence_is_what_the_card_says(
    local_hub: LocalHub, card: str | None, licence: str
) -> None:
    folder = write_folder(local_hub.repository("somebody/vit"))
    if card is not None:
        (folder / "README.md").write_text(card)
    assert open_ancestry("hf-hub:somebody/vit").record.licence == licence


def test_a_name_of_timms_lies_in_timms_repository(local_hub: LocalHub) -> None:
    spec = read_ancestry_spec("timm:test_vit.r160_in1k")
    folder = local_hub.repository("timm/test_vit.r160_in1k")
    save_file(dict(initialise(spec, 0)), folder / "model.safetensors")
    ancestry = open_ancestry("timm:test_vit")
    assert (ancestry.spec, ancestry.record.revision) == (spec, COMMIT)
    assert ancestry.record.source == "timm:test_vit"
    assert ancestry.record.licence == timm.get_pretrained_cfg("test_vit").license
    assert ancestry.record.mean == tuple(timm.get_pretrained_cfg("test_vit").mean)


def test_weights_in_a_layout_that_timm_converts(local_hub: LocalHub) -> None:
    spec = read_ancestry_spec("timm:test_vit.r160_in1k")
    state = {f"module.{name}": tensor for name, tensor in initialise(spec, 0).items()} | {
        "mask_token": torch.zeros(1)
    }
    folder = local_hub.repository("timm/test_vit.r160_in1k")
    old = {
        name.removeprefix("module."): tensor for name, tensor in state.items()
    }  # as DINOv2 is published
    save_file(old, folder / "model.safetensors")
    ancestry = open_ancestry("timm:test_vit").state
    assert all(torch.equal(ancestry[name], tensor) for name, tensor in initialise(spec, 0).items())
    assert "mask_token" not in ancestry


def test_weights_that_a_method_cannot_use_are_not_downloaded(local_hub: LocalHub) -> None:
    for source in ("timm:vit_tiny_patch16_dinov3_qkvb.eupe_lvd1689m", "hf-hub:somebody/eva"):
        (local_hub.repository("somebody/eva") / "config.json").write_text(
            '{"architecture": "vit_7b_patch16_dinov3"}'
        )
        with pytest.raises(WrongCall, match=r"pool does not support models of the family 'eva'"):
            lifecycle.extract("pool", ancestries=source, tasks="digits")
    assert {asked[1] for asked in local_hub.asked} == {"config.json"}


@pytest.mark.slow
@pytest.mark.parametrize("published", ["by timm", "by its authors"])
def test_dinov3_opens_as_timm_and_as_its_authors_publish_it(
    local_hub: LocalHub, published: str
) -> None:
    name = "vit_tiny_patch16_dinov3_qkvb.eupe_lvd1689m"
    spec = read_ancestry_spec(f"timm:{name}")
    state = {tensor: torch.randn(shape) for tensor, shape in get_shapes(spec).items()}
    stored = dict(state) if published == "by timm" else _as_meta_has_it(state)
    save_file(stored, local_hub.repository(f"timm/{name}") / "model.safetensors")
    ancestry = open_ancestry(f"timm:{name}")
    assert (ancestry.spec, ancestry.record.revision) == (spec, COMMIT)
    assert all(torch.equal(ancestry.state[tensor], state[tensor]) for tensor in state)


def _as_meta_has_it(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename tensors to the names of DINOv3's code, and add those that timm does not keep."""
    found = {"mask_token": torch.zeros(1), "rope_embed.periods": torch.ones(16)}
    for name, tensor in state.items():
        if name.endswith("v_bias"):
            continue
        if name.endswith("q_bias"):
            values = state[name.replace("q_bias", "v_bias")]
            found[name.replace("q_bias", "qkv.bias")] = torch.cat(
                [tensor, torch.zeros_like(tensor), values]
            )
            continue
        for ours, theirs in (
            ("gamma_1", "ls1.gamma"),
            ("gamma_2", "ls2.gamma"),
            ("reg_token", "storage_tokens"),
        ):
            name = name.replace(ours, theirs)
        found[name] = tensor
    return found


@pytest.mark.parametrize(
    "name", ["module.cls_token", "visual.class_embedding", "encoder.x", "conv1.weight"]
)
def test_weights_in_no_layout_that_timm_knows(local_hub: LocalHub, name: str) -> None:
    folder = write_folder(local_hub.repository("somebody/vit"))
    save_file({name: torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(BadFile, match=r"model\.safetensors") as error:
        open_ancestry("hf-hub:somebody/vit")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("vit_base_patch16_224.augreg_in21k", 21843),
        ("vit_base_patch16_224.mae", 0),
        ("deit_tiny_patch16_224.fb_in1k", 1000),
    ],
)
def test_a_tag_may_mean_another_head(name: str, classes: int) -> None:
    assert read_ancestry_spec(f"timm:{name}").classes == classes


def test_the_specs_of_known_names_come_from_the_table() -> None:
    assert (
        read_ancestry_spec("timm:deit_base_patch16_224") is ARCHITECTURES["deit_base_patch16_224"]
    )
    assert read_ancestry_spec("timm:vit_small_patch14_reg4_dinov2").registers == 4


def _error(kind: type[Exception], message: str = "first line\nsecond line") -> Exception:
    if issubclass(kind, hub.HfHubHTTPError):
        return kind(message, response=SimpleNamespace(headers={}, request=None, status_code=404))  # type: ignore[arg-type]
    return kind(message)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (hub.RepositoryNotFoundError, WrongCall, "there is no Hub repository a/b"),
        (hub.RevisionNotFoundError, WrongCall, "a/b has no revision 'v9'"),
        (hub.GatedRepoError, Unavailable, "is gated"),
        (hub.EntryNotFoundError, BadFile, "a/b@v9 has no config.json"),
        (hub.LocalEntryNotFoundError, Unavailable, "the Hub cannot be reached"),
        (hub.HFValidationError, WrongCall, "'a/b' is not the name of a Hub repository"),
        (
            hub.HfHubHTTPError,
            Unavailable,
            "config.json of a/b@v9 is not available: the Hub has no such thing",
        ),
        (OSError, Unavailable, "config.json of a/b@v9 is not available: first line"),
    ],
)
def test_what_the_hub_answers(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], kind: type[ZooError], message: str
) -> None:
    def failing(*arguments: object, **options: object) -> str:
        raise _error(error)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", failing)
    with pytest.raises(kind, match=message) as raised:
        open_ancestry("hf-hub:a/b@v9")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("seconds", "progress", "told"), [(0.5, False, 1), (0.0, False, 0), (0.5, True, 0)]
)
def test_who_waits_long_for_the_hub_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seconds: float,
    progress: bool,
    told: int,
) -> None:
    monkeypatch.setattr("learngene_zoo.hub.client.PATIENCE", 0.1)
    with translate_hub_errors(Repository("a/b", "v9"), "nothing", progress=progress):
        time.sleep(seconds)
    time.sleep(0.2)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["no answer from the Hub yet about a/b@v9; still trying"] * told


def test_offline_and_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client with an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(Unavailable, match="not cached and this run is offline"):
        open_ancestry("hf-hub:a/b", offline=True)
    with pytest.raises(Unavailable, match="not cached and this run is offline"):
        open_ancestry("timm:test_vit", offline=True)
    with pytest.raises(WrongCall, match="is not the name of a Hub repository"):
        open_ancestry("hf-hub:a/b/../c", offline=True)


def test_a_file_outside_a_cache_has_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda *a, **k: str(tmp_path / "config.json")
    )
    with pytest.raises(BadFile, match="revision is unknown"):
        fetch_from_hub(Repository("a/b"), "config.json", offline=False)
