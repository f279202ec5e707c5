"""Closed-form descendants: laws of the models, and refusals."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from closed_form_toy import EVA, EVAS, FIXED_WIDTH, SPEC, check_copies, extract_toy
from PIL import Image
from processes_toy import imitate_processes

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, MethodFailed, WrongCall
from learngene_zoo.families.family import get_table, load_family
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import take_blocks
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.runs.sharing import share_results
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_closed_form.calibration import derive_input_format, record_teacher, sample_pictures
from lgzoo_closed_form.closed_form import (
    DIRECTIONS,
    Calibration,
    ClosedFormExpander,
    ClosedFormExtractor,
)
from lgzoo_closed_form.modules import streams
from lgzoo_closed_form.modules.streams import Pictures, prepare_folder, record_streams


@pytest.fixture(scope="module")
def learngene() -> lg.Learngene:
    return extract_toy(make_tiny_ancestry(spec=SPEC))


@pytest.fixture(autouse=True)
def tiny_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "learngene_zoo.tasks.catalogue._open_named", lambda name, offline: make_tiny_task(name)
    )


def test_a_small_task_is_recorded_with_the_number_of_its_images() -> None:
    task = make_tiny_task()
    number = task.sizes["train"]
    for asked, used in ((8, 8), (number + 1, number)):
        extractor = ClosedFormExtractor(each=Calibration(images=asked))
        config = extractor([make_tiny_ancestry()], [task], Run()).config
        assert config.details["images"] == used


def test_the_full_size_is_the_ancestry_model(learngene: lg.Learngene) -> None:
    descendant = lg.expand(learngene, layers=SPEC.layers)
    for name in descendant.inherited:
        torch.testing.assert_close(descendant.state[name], learngene.state[name], atol=1e-6, rtol=0)
    assert len(descendant.inherited) == len(learngene.state) - 1


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_without_solving_blocks_are_selected(learngene: lg.Learngene, layers: int) -> None:
    runs = learngene.config.details["runs"][layers - 1]
    expander = ClosedFormExpander(teacher_depth=SPEC.layers, solve=False)
    descendant = lg.expand(learngene, layers=layers, expander=expander)
    blocks = take_blocks(
        {n: learngene.state[n] for n in learngene.state if n != DIRECTIONS}, SPEC, runs
    )
    assert descendant.inherited == set(blocks)
    assert all(torch.equal(descendant.state[name], blocks[name]) for name in blocks)


@pytest.mark.parametrize("layers", [1, 3])
def test_as_many_blocks_as_layers_are_the_first_ones(learngene: lg.Learngene, layers: int) -> None:
    descendant = lg.expand(learngene, layers=layers, teacher_depth=layers)
    first = take_blocks(
        {n: learngene.state[n] for n in learngene.state if n != DIRECTIONS}, SPEC, range(layers)
    )
    assert all(torch.equal(descendant.state[name], first[name]) for name in first)
    assert descendant.provenance["teacher_depth"] == layers


@pytest.mark.parametrize("spec", [SPEC, SPEC.with_(layer_scale=0.1), EVA], ids=str)
def test_no_images_are_read_where_nothing_is_solved(spec: Spec) -> None:
    learngene = extract_toy(make_tiny_ancestry(spec=spec))
    check_copies(learngene, spec.layers)
    check_copies(learngene, 3, teacher_depth=3)
    check_copies(learngene, 2, teacher_depth=spec.layers, solve=False)


def test_a_depth_leaves_sizes_for_a_budget(learngene: lg.Learngene) -> None:
    members = ClosedFormExpander(teacher_depth=3).family(learngene.config)
    assert {member.spec.layers for member in members} == {1, 2, 3}
    chosen = lg.expand(learngene, teacher_depth=3, max_params=1_000_000)
    assert (chosen.spec.layers, chosen.provenance["teacher_depth"]) == (3, 3)
    with pytest.raises(WrongCall, match="a descendant of 4 layers can stand for 4 to 4 blocks"):
        lg.expand(learngene, teacher_depth=3)


def test_the_depth_follows_from_the_costs(learngene: lg.Learngene) -> None:
    # Block 1 can stand for block 2; no other run is cheap.
    costs = [[0.0, 0.5, 0.6, 0.7], [0.0, 0.05, 0.8], [0.0, 0.5], [0.0]]
    details = {**learngene.config.details, "costs": costs}
    provenance = lg.expand(learngene.with_config(details=details), layers=2).provenance
    assert (provenance["runs"], provenance["teacher_depth"]) == ([0, 1], 3)


def test_a_narrow_descendant_of_fewer_blocks_is_that_of_the_truncated_model(
    learngene: lg.Learngene,
) -> None:
    descendant = lg.expand(learngene, layers=2, width=SPEC.head_width, teacher_depth=3)
    ancestry = make_tiny_ancestry(spec=SPEC)
    spec = SPEC.with_(layers=3)
    state = take_blocks(ancestry.state, SPEC, range(3))
    truncated = extract_toy(
        replace(ancestry, record=replace(ancestry.record, spec=spec), state=state)
    )
    expected = lg.expand(truncated, layers=2, width=SPEC.head_width, teacher_depth=3)
    assert descendant.state.keys() == expected.state.keys()
    for name in descendant.inherited:
        torch.testing.assert_close(descendant.state[name], expected.state[name])


@pytest.mark.parametrize("depth", [1, 5])
def test_a_depth_that_cannot_be_is_refused(learngene: lg.Learngene, depth: int) -> None:
    with pytest.raises(WrongCall, match=f"teacher_depth is {depth}; a descendant of 2 layers"):
        lg.expand(learngene, layers=2, teacher_depth=depth)


def test_learngenes_without_costs_stand_for_all_blocks(learngene: lg.Learngene) -> None:
    details = {**learngene.config.details, "costs": []}
    old = learngene.with_config(details=details)
    assert lg.expand(old, layers=2).provenance["teacher_depth"] == SPEC.layers
    with pytest.raises(WrongCall, match="extract it again, or leave out teacher_depth"):
        lg.expand(old, layers=2, teacher_depth=3)


@pytest.mark.parametrize("costs", [[[0.0]], [[0.0] * 4, [0.0] * 3, [0.0] * 2, [-1.0]]])
def test_costs_that_cannot_be_are_refused(
    learngene: lg.Learngene, costs: list[list[float]]
) -> None:
    details = {**learngene.config.details, "costs": costs}
    with pytest.raises(BadFile, match="costs has other than one number"):
        lg.expand(learngene.with_config(details=details), layers=2)


def measure_error(learngene: lg.Learngene, expander: ClosedFormExpander) -> float:
    """Return the squared error of the stream after the last block, on the calibration images."""
    state = {name: learngene.state[name] for name in learngene.state if name != DIRECTIONS}
    settings, run = Calibration(images=24), Run(seed=0)
    input_format = derive_input_format(learngene.config)
    teacher = record_teacher(state, SPEC, settings, make_tiny_task(), input_format, run)
    model = lg.expand(learngene, layers=2, expander=expander, run=run).model()
    pictures = sample_pictures(SPEC, settings, make_tiny_task(), input_format, run)
    difference = record_streams(model, pictures).before[-1] - teacher.streams.before[-1]
    return float((difference.square().sum(dim=1) * pictures.weights).sum())


def test_solving_comes_nearer_to_the_ancestry_model(learngene: lg.Learngene) -> None:
    depth = SPEC.layers
    assert measure_error(learngene, ClosedFormExpander(teacher_depth=depth)) < 0.5 * measure_error(
        learngene, ClosedFormExpander(teacher_depth=depth, solve=False)
    )


@pytest.mark.parametrize(
    ("depth", "nested", "said"),
    [(99, False, "can stand for 2 to 4 blocks"), (3, True, "nested descendants stand for all 4")],
)
def test_a_depth_that_has_no_effect_is_refused(
    learngene: lg.Learngene, depth: int, nested: bool, said: str
) -> None:
    expander = ClosedFormExpander(teacher_depth=depth, nested=nested)
    with pytest.raises(WrongCall, match=said):
        expander.check_target(learngene.config, Target(layers=2))


def test_other_pictures_give_another_model(learngene: lg.Learngene) -> None:
    first, second = (
        lg.expand(learngene, layers=2, expander=ClosedFormExpander(calibration=name))
        for name in ("a", "b")
    )
    assert not torch.equal(
        first.state["blocks.1.mlp.fc2.weight"], second.state["blocks.1.mlp.fc2.weight"]
    )
    assert second.provenance["calibration"] == "b"


def test_pictures_of_the_learngenes_maker_are_not_opened_unasked(
    learngene: lg.Learngene, tmp_path: Path
) -> None:
    details = {**learngene.config.details, "task": "folder:theirs"}
    with pytest.raises(
        WrongCall, match="has seen folder:theirs, which is opened only if you name it"
    ):
        lg.expand(learngene.with_config(details=details), layers=2)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(4):
            pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    descendant = lg.expand(
        learngene.with_config(details=details), layers=2, calibration=f"folder:{tmp_path}"
    )
    assert descendant.spec.layers == 2


def test_pictures_that_the_user_names_stand_for_those_of_the_maker(learngene: lg.Learngene) -> None:
    details = {**learngene.config.details, "task": "folder:theirs"}
    descendant = lg.expand(learngene.with_config(details=details), layers=2, task="b")
    assert descendant.provenance["calibration"] == "b"


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"layers": 5}, "layers is 5; the ancestry model has 4"),
        (
            {"width": 2 * SPEC.width},
            f"this learngene has {SPEC.heads} heads of {SPEC.head_width} channels and a width of "
            f"{SPEC.width}: choose width",
        ),
        ({"width": SPEC.width, "heads": 1}, "choose width"),
    ],
)
def test_sizes_that_cannot_be_solved_are_refused(
    learngene: lg.Learngene, sizes: dict[str, int], said: str
) -> None:
    with pytest.raises(WrongCall, match=said):
        lg.expand(learngene, target=Target(**sizes))  # type: ignore[arg-type]


def test_a_stream_that_no_layer_norm_reads_keeps_its_width() -> None:
    config = ClosedFormExtractor().outline([SPEC.with_(pre_norm=True)])
    members = ClosedFormExpander().family(config)
    assert {member.spec.width for member in members} == {SPEC.width}
    with pytest.raises(WrongCall, match="norms after attention and MLP"):
        ClosedFormExtractor().outline([SPEC.with_(post_norm=True)])


@pytest.mark.parametrize("runs", [[], [[0], [1, 2]], [[0], [0, 0]]])
def test_runs_that_cannot_be_are_refused(learngene: lg.Learngene, runs: list[list[int]]) -> None:
    details = {**learngene.config.details, "runs": runs, "costs": []}
    with pytest.raises(BadFile, match="runs has"):
        lg.expand(learngene.with_config(details=details), layers=2)


def test_missing_directions_are_refused(learngene: lg.Learngene) -> None:
    state = {name: learngene.state[name] for name in learngene.state if name != DIRECTIONS}
    with pytest.raises(BadFile, match="lacks the tensor directions"):
        lg.expand(replace(learngene, state=state), layers=2, width=SPEC.head_width)


@pytest.mark.parametrize(
    "changes",
    [{"mlp": "swiglu"}, {"mlp": "swiglu_packed"}, {"qk_norm": True}, {"layer_scale": 0.1}],
)
def test_other_blocks_are_solved(changes: dict[str, object]) -> None:
    spec = SPEC.with_(**changes)
    ancestry = make_tiny_ancestry(spec=spec)
    learngene = extract_toy(ancestry)
    full = lg.expand(learngene, layers=spec.layers)
    torch.testing.assert_close(
        full.state["blocks.3.mlp.fc2.weight"],
        ancestry.state["blocks.3.mlp.fc2.weight"],
        atol=1e-5,
        rtol=0,
    )
    small = lg.expand(learngene, layers=2, width=spec.head_width)
    assert small.spec.width == spec.head_width
    assert small.model()(torch.zeros(1, 3, 16, 16)).isfinite().all()


@pytest.mark.parametrize("size", [16, 0], ids=["images", "texts"])
def test_processes_read_the_images_together(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not size:
        pytest.importorskip("transformers")
    task, settings = make_tiny_task(image_size=size), Calibration(images=41, tokens=4)
    ancestry = make_tiny_ancestry(spec=load_family("vit" if size else "gpt2").examples[0])

    def sample() -> Pictures:
        form = ancestry.input_format
        return sample_pictures(ancestry.spec, settings, task, form, Run(seed=1))

    alone = sample()
    assert len(alone.images) == 41
    together = imitate_processes(sample, "learngene_zoo.runs.run.gather_values", monkeypatch)
    for name in ("images", "tokens", "weights"):
        assert torch.equal(getattr(together, name), getattr(alone, name)), name


@pytest.mark.slow
def test_kept_streams_serve_every_expansion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extractor = ClosedFormExtractor(keep_streams=True, each=Calibration(images=8))
    with pytest.raises(WrongCall, match="keep_streams keeps streams in the run's folder"):
        lg.extract("closed_form", extractor=extractor)
    learngene = lg.extract(
        "closed_form", extractor=extractor, out=tmp_path / "gene", run=Run(seed=1)
    )
    plain = lg.extract(
        "closed_form", extractor=replace(extractor, keep_streams=False), run=Run(seed=1)
    )
    assert torch.equal(learngene.state[DIRECTIONS], plain.state[DIRECTIONS])
    recorded = lg.expand(
        plain, layers=2, run=Run(seed=1).part("statistics")
    )  # with this seed it sees the same images
    monkeypatch.setattr("lgzoo_closed_form.modules.streams.record_streams", None)
    descendant = lg.expand(tmp_path / "gene", layers=2)
    assert descendant.provenance["streams"] == "kept"
    assert all(
        torch.equal(descendant.state[name], recorded.state[name]) for name in descendant.inherited
    )
    with pytest.raises(MethodFailed, match="NoneType"):  # of other images nothing is kept
        lg.expand(tmp_path / "gene", layers=2, calibration="digits")
    monkeypatch.undo()
    again = replace(extractor, keep_streams=False)
    lg.extract("closed_form", extractor=again, out=tmp_path / "gene", run=Run(seed=1), force=True)
    assert not list(tmp_path.rglob("*.f32"))


@pytest.mark.slow
def test_a_recommendation_records_streams_once(monkeypatch: pytest.MonkeyPatch) -> None:
    extractor = ClosedFormExtractor(each=Calibration(images=8))
    learngene, other = (
        lg.extract("closed_form", extractor=extractor, run=Run(seed=seed)) for seed in (1, 2)
    )
    recorded = []
    record = streams.record_streams
    monkeypatch.setattr(
        streams, "record_streams", lambda *inputs: (recorded.append(inputs), record(*inputs))[1]
    )
    alone = [lg.expand(learngene, layers=layers, run=Run(seed=1)) for layers in (2, 4)]
    assert len(recorded) == 2
    with share_results():
        shared = [lg.expand(learngene, layers=layers, run=Run(seed=1)) for layers in (2, 4)]
    assert len(recorded) == 3
    for first, second in zip(alone, shared):
        assert first.provenance["runs"] == second.provenance["runs"]
        assert first.state.keys() == second.state.keys()
        assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)
    ranked = lg.recommend("digits", [learngene, other], images=40, run=Run(seed=1))
    assert len(ranked) == 6
    assert len(recorded) == 5


@pytest.mark.slow
def test_streams_of_another_learngene_are_not_taken(tmp_path: Path) -> None:
    for seed, keep_streams in ((1, True), (2, False)):
        extractor = ClosedFormExtractor(keep_streams=keep_streams, each=Calibration(images=8))
        lg.extract(
            "closed_form", extractor=extractor, out=tmp_path / f"gene-{seed}", run=Run(seed=seed)
        )
    shutil.rmtree(tmp_path / "gene-2.run")
    (tmp_path / "gene-1.run").rename(tmp_path / "gene-2.run")
    assert "streams" not in lg.expand(tmp_path / "gene-2", layers=2).provenance


@pytest.mark.slow
def test_without_stored_weights_the_ancestry_model_is_opened_again() -> None:
    run = Run(seed=1)
    learngenes = [
        lg.extract(
            "closed_form",
            extractor=ClosedFormExtractor(store=store, each=Calibration(images=8)),
            run=run,
        )
        for store in (True, False)
    ]
    assert set(learngenes[1].state) == {DIRECTIONS}
    first, second = (lg.expand(learngene, layers=2, width=32, run=run) for learngene in learngenes)
    assert first.inherited == second.inherited
    assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)
    with pytest.raises(WrongCall, match="neither stores nor records"):
        lg.expand(learngenes[1].with_config(ancestries=()), layers=2)


@pytest.mark.parametrize("changes", [*EVAS, *FIXED_WIDTH], ids=str)
def test_evas(changes: dict[str, object]) -> None:
    spec = EVA.with_(**changes)
    ancestry = make_tiny_ancestry(spec=spec)
    learngene = extract_toy(ancestry)
    full = lg.expand(learngene, layers=spec.layers)
    for name in full.inherited:
        torch.testing.assert_close(full.state[name], ancestry.state[name], atol=1e-6, rtol=0)
    runs = learngene.config.details["runs"][1]
    copied = lg.expand(learngene, layers=2, expander=ClosedFormExpander(solve=False))
    blocks = take_blocks(
        {name: learngene.state[name] for name in learngene.state if name != DIRECTIONS}, spec, runs
    )
    assert copied.inherited == set(blocks)
    assert all(torch.equal(copied.state[name], blocks[name]) for name in blocks)
    widths = {member.spec.width for member in ClosedFormExpander().family(learngene.config)}
    assert widths == ({spec.width} if changes in FIXED_WIDTH else {spec.head_width, spec.width})
    if changes in FIXED_WIDTH:
        with pytest.raises(
            WrongCall, match="so its stream cannot be narrowed; leave out the width"
        ):
            lg.expand(learngene, layers=2, width=spec.head_width)
        with pytest.raises(WrongCall, match="so its stream cannot be turned; leave out nested"):
            lg.expand(learngene, nested=True)
    else:
        small = lg.expand(learngene, layers=2, width=spec.head_width)
        assert small.model()(torch.zeros(1, 3, 16, 16)).isfinite().all()


def test_norms_after_attention_and_mlp_are_refused() -> None:
    with pytest.raises(WrongCall, match="does not take models with norms after attention and MLP"):
        ClosedFormExtractor().outline([EVA.with_(post_norm=True, layer_scale=None)])


@pytest.mark.parametrize("family", ["vit", "eva"])
def test_nested_streams_begin_with_those_of_narrower_models(family: str) -> None:
    spec = (SPEC if family == "vit" else EVA).with_(width=48, heads=6, registers=2)
    ancestry = make_tiny_ancestry(spec=spec)
    learngene = extract_toy(ancestry)
    plain, narrow, wide = (
        lg.expand(learngene, layers=2, width=width, nested=nested)
        for width, nested in ((16, False), (16, True), (32, True))
    )
    stem_names = [name for name in narrow.inherited if get_table(spec).is_stem(name)]
    assert {"cls_token", "reg_token", "patch_embed.proj.weight", "patch_embed.proj.bias"} <= set(
        stem_names
    )
    for name in stem_names:
        axis = 0 if name.startswith("patch_embed") else -1
        torch.testing.assert_close(
            wide.state[name].narrow(axis, 0, 16), narrow.state[name], atol=1e-5, rtol=1e-4
        )
    first, second = (descendant.state["patch_embed.proj.weight"] for descendant in (plain, narrow))
    assert not torch.allclose(first, second, atol=1e-2)


@pytest.mark.parametrize("family", ["vit", "eva"])
def test_the_ancestry_models_own_width_is_nested_too(family: str) -> None:
    """Nested, it loses one direction per head; not nested, it is the ancestry model."""
    spec = (SPEC if family == "vit" else EVA).with_(width=48, heads=6)
    ancestry = make_tiny_ancestry(spec=spec)
    learngene = extract_toy(ancestry)
    narrow, full = (lg.expand(learngene, width=width, nested=True) for width in (24, 48))
    copied = lg.expand(learngene, width=48, nested=True, solve=False)
    assert not torch.allclose(
        copied.state["blocks.0.mlp.fc2.weight"], full.state["blocks.0.mlp.fc2.weight"], atol=1e-4
    )
    torch.testing.assert_close(
        full.state["patch_embed.proj.weight"][:24],
        narrow.state["patch_embed.proj.weight"],
        atol=1e-5,
        rtol=1e-4,
    )
    assert not torch.allclose(
        full.state["patch_embed.proj.weight"], ancestry.state["patch_embed.proj.weight"], atol=1e-2
    )
    plain = lg.expand(learngene)
    torch.testing.assert_close(
        plain.state["patch_embed.proj.weight"], ancestry.state["patch_embed.proj.weight"]
    )
    means = full.state["patch_embed.proj.weight"].unflatten(0, (6, 8)).mean(dim=1)
    torch.testing.assert_close(means, torch.zeros_like(means), atol=1e-6, rtol=0)


def test_a_new_recording_removes_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "streams"
    folder.mkdir()
    for name in (
        "before-0.f32",
        "heads-12.f32",
        "images.npy",
        "record.json",
        "notes.txt",
        "mine.npy",
    ):
        (folder / name).write_text("x")
    assert prepare_folder(folder, is_kept=True) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["mine.npy", "notes.txt"]
    assert prepare_folder(folder, is_kept=False) is None
    assert len(list(folder.iterdir())) == 2
