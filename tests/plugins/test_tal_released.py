"""Released hypernetworks in every layout: specs, tensors, other networks, and origins."""

from __future__ import annotations

import argparse
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_toy import WRITERS, write_pickle

from learngene_zoo import lifecycle
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.hub import client as hub_file
from learngene_zoo.runs.run import Run
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules import released
from lgzoo_tal.modules.hypernet import Hypernet
from lgzoo_tal.modules.released import fetch_checkpoint, read_hypernet

CONV = HypernetSpec(hidden=16, layers=2, heads=4, decoder="conv", widest=12, classes=10, spatial=11)
LOW_RANK = HypernetSpec(hidden=16, layers=2, heads=2, decoder="low_rank", rank=4, chunk=512)
TASKS = LOW_RANK.with_(task=6, widest=64, classes=10)

State = dict[str, torch.Tensor]


def build_official(spec: HypernetSpec) -> State:
    """Return the state dictionary of the official code, its unread tensors included."""
    state = dict(Hypernet(spec, 1).state_dict())
    if spec.decoder == "low_rank":
        state |= {f"decoder.seq.1.{end}": state[f"decoder.l2.{end}"] for end in ("weight", "bias")}
        state |= {
            f"{name}.{end}": torch.zeros(1)
            for name in ("decoder_1d.0", "bias_class.1")
            for end in ("weight", "bias")
        }
        if not spec.task:
            state |= {"decoder.l1.weight": torch.zeros(4, 4), "decoder.l1.bias": torch.zeros(4)}
    return state


def flatten(state: State) -> State:
    """Return the state as in the released files: three tables beside the layers."""
    moved = ("gnn.0.centrality_embed", "gnn.0.input_dist")
    return {
        name.removeprefix("gnn.0.") if name.startswith(moved) else name: value
        for name, value in state.items()
    }


@pytest.mark.parametrize("layout", WRITERS)
def test_a_released_file_in_every_layout(layout: str, tmp_path: Path) -> None:
    expected = Hypernet(CONV, 1).state_dict()
    WRITERS[layout](tmp_path / "ghn3.pt", flatten(build_official(CONV)))
    spec, state = read_hypernet(tmp_path / "ghn3.pt")
    assert spec == CONV
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize("spec", [CONV, LOW_RANK, TASKS], ids=["ghn3", "logah", "tal"])
def test_a_checkpoint_of_the_training_code_with_all_that_lies_in_it(
    spec: HypernetSpec, tmp_path: Path
) -> None:
    hypernet = Hypernet(spec, 1)
    optimiser = torch.optim.AdamW(hypernet.parameters(), lr=3e-4)
    state = OrderedDict(build_official(spec))
    state._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    checkpoint = {
        "state_dict": state,
        "optimizer": optimiser.state_dict() | {"lr": np.float64(1e-5)},
        "epoch": 3,
        "step": 299,
        "args": argparse.Namespace(hid=16, lr_steps=[200, 250], device="cuda", name=None),
        "config": {
            "max_shape": (spec.widest,) * 2 + (16, 16),
            "num_classes": spec.classes,
            "hid": 16,
            "ve": True,
        },
    }
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    actual, tensors = read_hypernet(tmp_path / "checkpoint.pt")
    assert actual == spec
    hypernet.load_state_dict(dict(tensors), strict=True)


def test_what_the_shapes_do_not_say_is_as_in_the_papers(tmp_path: Path) -> None:
    write_pickle(tmp_path / "logah.pt", build_official(LOW_RANK))
    spec, state = read_hypernet(tmp_path / "logah.pt")
    assert (spec.widest, spec.classes) == (2048, 1000)
    assert not [
        name
        for name in state
        if name.startswith(("decoder.seq", "decoder.l1", "decoder_1d", "bias_class"))
    ]


# Other networks.


def test_a_checkpoint_is_refused_for_an_ancestry_model_of_texts(tmp_path: Path) -> None:
    write_pickle(tmp_path / "ghn3.pt", build_official(CONV))
    with pytest.raises(WrongCall, match=r"the ancestry model takes texts; .* leave out released"):
        lifecycle.extract(
            "ghn3",
            ancestries="ancestry-words",
            released=str(tmp_path / "ghn3.pt"),
            run=Run(threads=1, device="cpu"),
        )


def test_ghn_2_is_refused(tmp_path: Path) -> None:
    write_pickle(
        tmp_path / "ghn2.pt", build_official(CONV) | {"gnn.gru.weight_ih": torch.zeros(3, 3)}
    )
    with pytest.raises(BadFile, match="is a GHN-2, which has another graph network"):
        read_hypernet(tmp_path / "ghn2.pt")


def change(**changes: torch.Tensor | None) -> State:
    state = build_official(CONV) | {
        name.replace("__", "."): value for name, value in changes.items()
    }  # type: ignore[operator]
    return {name: value for name, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"a": torch.zeros(1)},
            "lacks the tensor shape_enc.embed_spatial.weight; it is not a checkpoint of GHN-3",
        ),
        (change(embed__weight=None), "lacks the tensor embed.weight"),
        (
            change(ln__weight=None),
            r"expected the hypernetwork's tensor ln.weight to have shape \(16,\), it is missing",
        ),
        (change(more=torch.zeros(1)), "got a tensor 'more', which this hypernetwork does not have"),
        (change(ln__bias=torch.zeros(17)), r"tensor ln.bias to have shape \(16,\), got \(17,\)"),
        (change(ln__bias=torch.full((16,), torch.nan)), "ln.bias holds values that are not finite"),
        (
            change(embed__weight=torch.zeros(15, 18)),
            "does not describe a hypernetwork: the hypernetwork's width is 18",
        ),
        (change(embed__weight=torch.zeros(())), "does not describe a hypernetwork: hidden is 0"),
        ([torch.zeros(1)], "does not hold tensors by name"),
        ({"ln.weight": 3}, "does not hold tensors by name"),
        ({"state_dict": {"a": "b"}, "config": {}}, "does not hold tensors by name"),
        (
            {"state_dict": build_official(CONV), "config": {"hid": 64}},
            "hid is 64 in its config, but 16 by its tensors; it is another variant",
        ),
        (
            {"state_dict": build_official(CONV), "config": {"weight_norm": False}},
            "weight_norm is False in its config, but True by its tensors",
        ),
        (
            {"state_dict": build_official(TASKS), "config": {"max_shape": "wide"}},
            "max_shape is str in its config",
        ),
    ],
)
def test_what_is_no_such_hypernetwork_is_refused(state: Any, message: str, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(BadFile, match=message):
        read_hypernet(tmp_path / "other.pt")


# Where they come from.


def test_a_local_file_is_fetched_with_its_checksum(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"abc")
    path, release = fetch_checkpoint(str(tmp_path / "x.pt"), offline=True)
    assert path == tmp_path / "x.pt"
    assert release.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert release.revision is None


def test_a_file_on_the_hub_is_fetched_at_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def fake(repository: hub_file.Repository, filename: str, *, offline: bool) -> hub_file.HubFile:
        requests.append((str(repository), filename, offline))
        (tmp_path / "x.pt").write_bytes(b"abc")
        return hub_file.HubFile(tmp_path / "x.pt", "f" * 40)

    monkeypatch.setattr(released, "fetch_from_hub", fake)
    monkeypatch.setattr(
        released, "read_card_licence", lambda repository, *, offline: f"of {repository.revision}"
    )
    _, release = fetch_checkpoint("hf-hub:SamsungSAILMontreal/ghn3/ghn3tm8.pt@main", offline=True)
    assert requests == [("SamsungSAILMontreal/ghn3@main", "ghn3tm8.pt", True)]
    assert (release.revision, release.licence) == ("f" * 40, f"of {'f' * 40}")
    fetch_checkpoint("hf-hub:a/b/folder/file.pt")
    assert requests[1] == ("a/b", "folder/file.pt", False)


@pytest.mark.parametrize(
    "reference", ["hf-hub:", "hf-hub:a/b", "hf-hub:a//c", "nowhere.pt", "timm:deit", ""]
)
def test_references_that_name_no_file_are_refused(reference: str) -> None:
    with pytest.raises(WrongCall, match="hf-hub:organisation/name/file"):
        released.fetch_checkpoint(reference, offline=True)
