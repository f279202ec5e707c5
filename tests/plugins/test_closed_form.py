"""Closed-form descendants: the laws of what is built, and what is refused."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from closed_form_toy import EVA, EVAS, SPEC, WHOLE
from PIL import Image

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import table_of
from learngene_zoo.families.tensors import take_blocks
from learngene_zoo.method import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import check_method, tiny_ancestry, tiny_task
from lgzoo_closed_form.closed_form import CLOSED_FORM, DIRECTIONS, Calibration, Measure, Solve
from lgzoo_closed_form.streams import pictures, record
from lgzoo_closed_form.teaching import teacher_of


def test_contract() -> None:
    check_method(CLOSED_FORM)


@pytest.fixture(scope="module")
def learngene() -> lg.Learngene:
    ancestry = tiny_ancestry(spec=SPEC)
    made = Measure(each=Calibration(images=24))([ancestry], [tiny_task()], Run(seed=1))
    return made.with_config(ancestries=(ancestry.record,))


@pytest.fixture(autouse=True)
def tiny_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learngene_zoo.tasks.catalogue._named", lambda name, offline: tiny_task(name))


def test_the_full_size_is_the_ancestry_model(learngene: lg.Learngene) -> None:
    made = lg.expand(learngene, layers=SPEC.layers)
    for name in made.inherited:
        torch.testing.assert_close(made.state[name], learngene.state[name], atol=1e-6, rtol=0)
    assert len(made.inherited) == len(learngene.state) - 1


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_without_solving_blocks_are_selected(learngene: lg.Learngene, layers: int) -> None:
    runs = learngene.config.details["runs"][layers - 1]
    made = lg.expand(learngene, layers=layers, expander=Solve(solve=False))
    taken = take_blocks({n: learngene.state[n] for n in learngene.state if n != DIRECTIONS}, SPEC, runs)
    assert made.inherited == set(taken)
    assert all(torch.equal(made.state[name], taken[name]) for name in taken)
    first = lg.expand(learngene, layers=layers, expander=Solve(cut="first", solve=False))
    assert torch.equal(
        first.state[f"blocks.{layers - 1}.mlp.fc2.weight"], learngene.state[f"blocks.{layers - 1}.mlp.fc2.weight"]
    )


def missed(learngene: lg.Learngene, expander: Solve) -> float:
    """How far the stream after the last block is from the ancestry model's, on the calibration images."""
    from lgzoo_closed_form.calibration import form_of

    state = {name: learngene.state[name] for name in learngene.state if name != DIRECTIONS}
    settings, form, run = Calibration(images=24), form_of(learngene.config), Run(seed=0)
    teacher = teacher_of(state, SPEC, settings, tiny_task(), form, run)
    made = lg.expand(learngene, layers=2, expander=expander, run=run).model()
    shown = pictures(tiny_task(), 1, SPEC.patches, form, run, images=24, tokens=64, weight=4.0)
    difference = record(made, shown).before[-1] - teacher.streams.before[-1]
    return float((difference.square().sum(dim=1) * shown.weights).sum())


def test_solving_comes_nearer_to_the_ancestry_model(learngene: lg.Learngene) -> None:
    assert missed(learngene, Solve()) < 0.5 * missed(learngene, Solve(solve=False))


def test_other_pictures_give_another_model(learngene: lg.Learngene) -> None:
    one, other = (lg.expand(learngene, layers=2, expander=Solve(calibration=name)) for name in ("a", "b"))
    assert not torch.equal(one.state["blocks.1.mlp.fc2.weight"], other.state["blocks.1.mlp.fc2.weight"])
    assert other.provenance["calibration"] == "b"


def test_pictures_of_the_learngenes_maker_are_not_opened_unasked(learngene: lg.Learngene, tmp_path: Path) -> None:
    details = {**learngene.config.details, "task": "folder:theirs"}
    with pytest.raises(WrongCall, match="has seen folder:theirs, which is opened only if you name it"):
        lg.expand(learngene.with_config(details=details), layers=2)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(4):
            pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    made = lg.expand(learngene.with_config(details=details), layers=2, calibration=f"folder:{tmp_path}")
    assert made.spec.layers == 2


def test_pictures_that_the_user_names_stand_for_those_of_the_maker(learngene: lg.Learngene) -> None:
    details = {**learngene.config.details, "task": "folder:theirs"}
    mine = lg.expand(learngene.with_config(details=details), layers=2, task="b")
    assert mine.provenance["calibration"] == "b"


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"layers": 5}, "layers is 5; the ancestry model has 4"),
        (
            {"width": 2 * SPEC.width},
            f"this learngene has heads of {SPEC.head_width} and a width of {SPEC.width}: choose width",
        ),
        ({"width": SPEC.head_width, "heads": 2}, "choose width"),
    ],
)
def test_sizes_that_cannot_be_solved_are_refused(learngene: lg.Learngene, sizes: dict[str, int], said: str) -> None:
    with pytest.raises(WrongCall, match=said):
        lg.expand(learngene, target=Target(**sizes))  # type: ignore[arg-type]


def test_a_stream_that_no_layer_norm_reads_keeps_its_width() -> None:
    config = Measure().outline([SPEC.with_(pre_norm=True)])
    members = Solve().family(config)
    assert {member.spec.width for member in members} == {SPEC.width}
    with pytest.raises(WrongCall, match="norms after attention and MLP"):
        Measure().outline([SPEC.with_(post_norm=True)])


@pytest.mark.parametrize("runs", [[], [[0], [1, 2]], [[0], [0, 0]]])
def test_runs_that_cannot_be_are_refused(learngene: lg.Learngene, runs: list[list[int]]) -> None:
    details = {**learngene.config.details, "runs": runs}
    with pytest.raises(BadFile, match="runs has"):
        lg.expand(learngene.with_config(details=details), layers=2)


def test_missing_directions_are_refused(learngene: lg.Learngene) -> None:
    state = {name: learngene.state[name] for name in learngene.state if name != DIRECTIONS}
    with pytest.raises(BadFile, match="lacks the tensor directions"):
        lg.expand(replace(learngene, state=state), layers=2, width=SPEC.head_width)


@pytest.mark.parametrize(
    "changes", [{"mlp": "swiglu"}, {"mlp": "swiglu_packed"}, {"qk_norm": True}, {"layer_scale": 0.1}]
)
def test_other_blocks_are_solved(changes: dict[str, object]) -> None:
    spec = SPEC.with_(**changes)
    ancestry = tiny_ancestry(spec=spec)
    made = Measure(each=Calibration(images=24))([ancestry], [tiny_task()], Run(seed=1))
    whole = lg.expand(made, layers=spec.layers)
    torch.testing.assert_close(
        whole.state["blocks.3.mlp.fc2.weight"], ancestry.state["blocks.3.mlp.fc2.weight"], atol=1e-5, rtol=0
    )
    small = lg.expand(made, layers=2, width=spec.head_width)
    assert small.spec.width == spec.head_width
    assert small.model()(torch.zeros(1, 3, 16, 16)).isfinite().all()


def test_kept_streams_serve_every_expansion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extractor = Measure(keep_streams=True, each=Calibration(images=8))
    with pytest.raises(WrongCall, match="keep_streams keeps streams in the run's folder"):
        lg.extract("closed_form", extractor=extractor)
    made = lg.extract("closed_form", extractor=extractor, out=tmp_path / "gene", run=Run(seed=1))
    plain = lg.extract("closed_form", extractor=replace(extractor, keep_streams=False), run=Run(seed=1))
    assert torch.equal(made.state[DIRECTIONS], plain.state[DIRECTIONS])
    anew = lg.expand(plain, layers=2, run=Run(seed=1).part("statistics"))  # with this seed it sees the same images
    monkeypatch.setattr("lgzoo_closed_form.streams.record", None)
    found = lg.expand(tmp_path / "gene", layers=2)
    assert found.provenance["streams"] == "kept"
    assert all(torch.equal(found.state[name], anew.state[name]) for name in found.inherited)
    with pytest.raises(TypeError):  # of other images nothing is kept
        lg.expand(tmp_path / "gene", layers=2, calibration="digits")
    monkeypatch.undo()
    again = replace(extractor, keep_streams=False)
    lg.extract("closed_form", extractor=again, out=tmp_path / "gene", run=Run(seed=1), force=True)
    assert not list(tmp_path.rglob("*.f32"))


def test_streams_of_another_learngene_are_not_taken(tmp_path: Path) -> None:
    for seed, keep_streams in ((1, True), (2, False)):
        extractor = Measure(keep_streams=keep_streams, each=Calibration(images=8))
        lg.extract("closed_form", extractor=extractor, out=tmp_path / f"gene-{seed}", run=Run(seed=seed))
    shutil.rmtree(tmp_path / "gene-2.run")
    (tmp_path / "gene-1.run").rename(tmp_path / "gene-2.run")
    assert "streams" not in lg.expand(tmp_path / "gene-2", layers=2).provenance


def test_without_stored_weights_the_ancestry_model_is_opened_again() -> None:
    run = Run(seed=1)
    made = [
        lg.extract("closed_form", extractor=Measure(store=store, each=Calibration(images=8)), run=run)
        for store in (True, False)
    ]
    assert set(made[1].state) == {DIRECTIONS}
    one, other = (lg.expand(gene, layers=2, width=32, run=run) for gene in made)
    assert one.inherited == other.inherited
    assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)
    with pytest.raises(WrongCall, match="neither stores nor records"):
        lg.expand(made[1].with_config(ancestries=()), layers=2)


@pytest.mark.parametrize("changes", [*EVAS, *WHOLE], ids=str)
def test_evas(changes: dict[str, object]) -> None:
    spec = EVA.with_(**changes)
    ancestry = tiny_ancestry(spec=spec)
    made = Measure(each=Calibration(images=24))([ancestry], [tiny_task()], Run(seed=1))
    whole = lg.expand(made, layers=spec.layers)
    for name in whole.inherited:
        torch.testing.assert_close(whole.state[name], ancestry.state[name], atol=1e-6, rtol=0)
    chosen = made.config.details["runs"][1]
    copied = lg.expand(made, layers=2, expander=Solve(solve=False))
    taken = take_blocks({name: made.state[name] for name in made.state if name != DIRECTIONS}, spec, chosen)
    assert copied.inherited == set(taken)
    assert all(torch.equal(copied.state[name], taken[name]) for name in taken)
    widths = {member.spec.width for member in Solve().family(made.config)}
    assert widths == ({spec.width} if changes in WHOLE else {spec.head_width, spec.width})
    if changes in WHOLE:
        with pytest.raises(WrongCall, match="so its stream cannot be narrowed; leave out the width"):
            lg.expand(made, layers=2, width=spec.head_width)
        with pytest.raises(WrongCall, match="so its stream cannot be turned; leave out nested"):
            lg.expand(made, nested=True)
    else:
        small = lg.expand(made, layers=2, width=spec.head_width)
        assert small.model()(torch.zeros(1, 3, 16, 16)).isfinite().all()


def test_norms_after_attention_and_mlp_are_refused() -> None:
    with pytest.raises(WrongCall, match="does not take models with norms after attention and MLP"):
        Measure().outline([EVA.with_(post_norm=True, layer_scale=None)])


@pytest.mark.parametrize("family", ["vit", "eva"])
def test_nested_streams_begin_with_those_of_narrower_models(family: str) -> None:
    spec = (SPEC if family == "vit" else EVA).with_(width=48, heads=6, registers=2)
    ancestry = tiny_ancestry(spec=spec)
    gene = Measure(each=Calibration(images=24))([ancestry], [tiny_task()], Run(seed=1))
    plain, narrow, wide = (
        lg.expand(gene, layers=2, width=width, nested=nested) for width, nested in ((16, False), (16, True), (32, True))
    )
    stem_names = [name for name in narrow.inherited if table_of(spec).is_stem(name)]
    assert {"cls_token", "reg_token", "patch_embed.proj.weight", "patch_embed.proj.bias"} <= set(stem_names)
    for name in stem_names:
        axis = 0 if name.startswith("patch_embed") else -1
        torch.testing.assert_close(wide.state[name].narrow(axis, 0, 16), narrow.state[name], atol=1e-5, rtol=1e-4)
    one, other = (made.state["patch_embed.proj.weight"] for made in (plain, narrow))
    assert not torch.allclose(one, other, atol=1e-2)


@pytest.mark.parametrize("family", ["vit", "eva"])
def test_the_ancestry_models_own_width_is_nested_too(family: str) -> None:
    """It loses one direction a head; where the streams do not use these, it is the ancestry model, turned."""
    spec = (SPEC if family == "vit" else EVA).with_(width=48, heads=6)
    ancestry, task = tiny_ancestry(spec=spec), tiny_task()
    gene = Measure(each=Calibration(images=24))([ancestry], [task], Run(seed=1))
    narrow, whole = (lg.expand(gene, width=width, nested=True) for width in (24, 48))
    copied = lg.expand(gene, width=48, nested=True, solve=False)
    assert not torch.allclose(
        copied.state["blocks.0.mlp.fc2.weight"], whole.state["blocks.0.mlp.fc2.weight"], atol=1e-4
    )
    torch.testing.assert_close(
        whole.state["patch_embed.proj.weight"][:24], narrow.state["patch_embed.proj.weight"], atol=1e-5, rtol=1e-4
    )
    assert not torch.allclose(
        whole.state["patch_embed.proj.weight"], ancestry.state["patch_embed.proj.weight"], atol=1e-2
    )
    plain = lg.expand(gene)
    torch.testing.assert_close(plain.state["patch_embed.proj.weight"], ancestry.state["patch_embed.proj.weight"])
    means = whole.state["patch_embed.proj.weight"].unflatten(0, (6, 8)).mean(dim=1)
    torch.testing.assert_close(means, torch.zeros_like(means), atol=1e-6, rtol=0)


def test_a_new_recording_removes_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    from lgzoo_closed_form.recording import fresh

    folder = tmp_path / "streams"
    folder.mkdir()
    for name in ("before-0.f32", "heads-12.f32", "images.npy", "record.json", "notes.txt", "mine.npy"):
        (folder / name).write_text("x")
    assert fresh(folder, wanted=True) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["mine.npy", "notes.txt"]
    assert fresh(folder, wanted=False) is None
    assert len(list(folder.iterdir())) == 2
