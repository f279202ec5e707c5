"""Closed-form descendants: the programme, the ridge, the narrow stream, and the laws of what is built."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import load_family, table_of
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import filled, model_of, take_blocks
from learngene_zoo.method import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import check_method, tiny_ancestry, tiny_task
from lgzoo_closed_form.anatomy import branches, stem
from lgzoo_closed_form.closed_form import CLOSED_FORM, DIRECTIONS, Calibration, Measure, Solve
from lgzoo_closed_form.depth import cuts, monotone
from lgzoo_closed_form.recording import size_of
from lgzoo_closed_form.ridge import MOST_SUBSETS, Ridge, Sums, best_heads, best_neurons, spread
from lgzoo_closed_form.solve import Teacher, solved, start
from lgzoo_closed_form.streams import pictures, record
from lgzoo_closed_form.teaching import teacher_of
from lgzoo_closed_form.width import complement, directions, folded, narrowed, narrowed_parts, projection

SPEC = load_family("vit").examples[0].with_(layers=4)
EVA = (
    load_family("eva")
    .examples[0]
    .with_(layers=4, registers=0, layer_scale=None, rope_type="cat", swiglu=False, mlp_ratio=2.0)
)
EVAS: list[dict[str, object]] = [
    {},
    {"attention": "rope"},
    {"qkv_fused": False},
    {"qkv_bias": False, "registers": 2, "rope_type": "dinov3", "rope_half": True, "layer_scale": 0.1},  # as DINOv3
    {"rope_type": "mixed", "attention": "rope", "layer_scale": 0.1},
    {"swiglu": True},
    {"swiglu": True, "swiglu_multiple": 8},
    {"rotary": False, "absolute": True},
]
WHOLE: list[dict[str, object]] = [  # streams that keep their width
    {"swiglu": True, "mlp_norm": True, "qkv_fused": False},  # as EVA02
    {"attention_norm": True},
    {"pre_norm": True, "attention": "rope"},  # as Perception Encoder
]


def test_contract() -> None:
    check_method(CLOSED_FORM)


def random_costs(seed: int, layers: int = 7) -> list[list[float]]:
    generator = np.random.default_rng(seed)
    return [[0.0, *generator.random(layers - 1 - first).tolist()] for first in range(layers)]


@pytest.mark.parametrize("seed", range(5))
def test_the_programme_finds_the_best_cut_and_never_rises(seed: int) -> None:
    costs = random_costs(seed)
    hard = monotone(costs)

    def objective(starts: Sequence[int]) -> float:
        ends = [*starts[1:], len(costs)]
        return sum(hard[first][end - 1 - first] for first, end in zip(starts, ends))

    found = cuts(costs)
    for runs, (starts, value) in enumerate(found, start=1):
        tried = [(0, *others) for others in combinations(range(1, len(costs)), runs - 1)]
        assert value == pytest.approx(min(objective(one) for one in tried))
        assert objective(starts) == pytest.approx(value)
    values = [value for _, value in found]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 0


def test_a_run_is_as_hard_as_its_hardest_part() -> None:
    hard = monotone([[0.0, 0.5, 0.1], [0.0, 0.2], [0.0]])
    assert hard == [[0.0, 0.5, 0.5], [0.0, 0.2], [0.0]]


def regression(rho: float) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    inputs, targets, start = (torch.randn(*shape, generator=generator) for shape in ((60, 5), (60, 3), (3, 5)))
    weights = torch.rand(60, generator=generator).double() + 0.1
    bias = torch.zeros(3)
    weight, offset = Ridge.on(inputs, weights, rho).solve(targets, start, bias)
    assert offset is not None
    return inputs.double(), targets.double(), start.double(), weights, weight, offset


def test_ridge_without_penalty_is_weighted_least_squares() -> None:
    inputs, targets, _, weights, weight, offset = regression(0.0)
    root = weights.sqrt()[:, None]
    wide = torch.cat([inputs, torch.ones(60, 1, dtype=torch.float64)], dim=1)
    expected = torch.linalg.lstsq(root * wide, root * targets).solution
    torch.testing.assert_close(torch.cat([weight.T, offset[None]]), expected)


def test_ridge_minimises_its_objective() -> None:
    rho = 0.3
    inputs, targets, start, weights, weight, offset = regression(rho)
    mean = (inputs * weights[:, None]).sum(dim=0) / weights.sum()
    penalty = rho * ((inputs - mean).square() * weights[:, None]).sum(dim=0).mean()
    weight, offset = weight.clone().requires_grad_(), offset.clone().requires_grad_()
    missed = ((inputs @ weight.T + offset - targets).square().sum(dim=1) * weights).sum()
    (missed + penalty * (weight - start).square().sum()).backward()
    torch.testing.assert_close(weight.grad, torch.zeros_like(weight), atol=1e-9, rtol=0)
    torch.testing.assert_close(offset.grad, torch.zeros_like(offset), atol=1e-9, rtol=0)


def test_a_strong_ridge_keeps_the_start() -> None:
    *_, start, _, weight, _ = regression(1e12)
    torch.testing.assert_close(weight, start)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_sums_of_parts_are_those_of_all_rows(centred: bool, mean: float) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randn(50, size, generator=generator).double() + mean for size in (600, 3))
    weights = torch.rand(50, generator=generator).double() + 0.1
    cuts_at = [0, 1, 20, 50]
    parts = [(inputs[a:b], targets[a:b], weights[a:b]) for a, b in pairwise(cuts_at)]
    sums = Sums.over(parts, centred=centred)
    mean_I, mean_O = (
        ((rows * weights[:, None]).sum(0) / weights.sum() if centred else torch.zeros(rows.shape[1]).double())
        for rows in (inputs, targets)
    )
    rows, wanted = inputs - mean_I, targets - mean_O
    torch.testing.assert_close(sums.gram, rows.T @ torch.diag(weights) @ rows)
    torch.testing.assert_close(sums.cross_IO, rows.T @ torch.diag(weights) @ wanted)
    torch.testing.assert_close(sums.square_O, weights @ wanted.square())
    if centred:
        torch.testing.assert_close(spread((part, of) for _, part, of in parts), weights @ wanted.square())


def test_what_a_solution_misses_follows_from_the_sums() -> None:
    inputs, targets, start, weights, weight, offset = regression(0.3)
    residual = inputs @ weight.T + offset - targets
    missed = Sums.over([(inputs, targets, weights)]).missed(start, 0.3)
    torch.testing.assert_close(missed, weights @ residual.square())


def test_heads_are_chosen_by_what_they_explain() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(200, 8, generator=generator)
    outputs[:, 4:6] = outputs[:, 0:2] + 0.01 * torch.randn(200, 2, generator=generator)  # head 2 says what head 0 says
    reader = torch.randn(6, 8, generator=generator)
    reader[:, 2:4] *= 0.01  # head 1 is hardly read
    found = best_heads(outputs, reader, torch.ones(200).double(), 2, 4)
    assert 3 in found
    assert len({0, 2} & set(found)) == 1


def test_many_heads_are_dropped_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, reader = torch.randn(100, 24, generator=generator), torch.randn(5, 24, generator=generator)
    reader[:, [3, 7, 20]] *= 100
    assert MOST_SUBSETS < 2024
    assert best_heads(outputs, reader, torch.ones(100).double(), 3, 24) == [3, 7, 20]


def test_neurons_are_chosen_by_variance_and_by_what_reads_them() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(100, 4, generator=generator) * torch.tensor([1.0, 10.0, 2.0, 1.0]) + 50
    reader = torch.tensor([[1.0, 0.01, 1.0, 5.0]])
    assert best_neurons(outputs, reader, torch.ones(100).double(), 2) == [2, 3]


@pytest.mark.parametrize("narrow", [2, 7, 32])
def test_the_narrow_basis_is_orthonormal_and_of_mean_zero(narrow: int) -> None:
    columns = complement(narrow)
    torch.testing.assert_close(columns.T @ columns, torch.eye(narrow - 1, dtype=torch.float64))
    torch.testing.assert_close(columns.sum(dim=0), torch.zeros(narrow - 1, dtype=torch.float64))


def test_layer_norm_stays_exact_in_the_narrow_stream() -> None:
    generator = torch.Generator().manual_seed(0)
    wide, narrow = 24, 9
    raw = torch.randn(wide, wide, generator=generator, dtype=torch.float64)
    columns, _ = torch.linalg.qr(raw - raw.mean(dim=0))  # its first 23 columns are orthogonal to the ones
    P_dD = projection(columns, narrow)
    inside = torch.randn(5, narrow - 1, generator=generator, dtype=torch.float64) @ columns[:, : narrow - 1].T
    tokens = inside + torch.randn(5, 1, generator=generator, dtype=torch.float64)  # any mean
    norm = torch.nn.functional.layer_norm
    expected = norm(tokens, (wide,), eps=0.0) @ P_dD.T
    torch.testing.assert_close((wide / narrow) ** 0.5 * norm(tokens @ P_dD.T, (narrow,), eps=0.0), expected)


def test_a_layer_scale_becomes_one_number() -> None:
    generator = torch.Generator().manual_seed(0)
    spec = SPEC.with_(layer_scale=0.1)
    state = tiny_ancestry(spec=spec).state
    block = {name.removeprefix("blocks.0."): state[name] for name in state if name.startswith("blocks.0.")}
    gamma = torch.rand(spec.width, generator=generator)
    P_dD = torch.randn(spec.head_width, spec.width, generator=generator, dtype=torch.float64)
    made = narrowed({**block, "ls1.gamma": gamma}, spec, P_dD, [1], range(spec.hidden // 2))
    expected = P_dD.float() @ (gamma[:, None] * block["attn.proj.weight"])[:, spec.head_width :]
    torch.testing.assert_close(made["ls1.gamma"][:, None] * made["attn.proj.weight"], expected)
    assert made["ls1.gamma"].unique().numel() == 1


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
    from lgzoo_closed_form.closed_form import _input_format

    state = {name: learngene.state[name] for name in learngene.state if name != DIRECTIONS}
    settings, form, run = Calibration(images=24), _input_format(learngene.config), Run(seed=0)
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
    with pytest.raises(WrongCall, match="calibrated on folder:theirs, which is opened only if you name it"):
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
        ({"width": 2 * SPEC.width}, f"this learngene has heads of {SPEC.head_width}: choose width"),
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


def recorded(spec: Spec = SPEC, folder: Path | None = None) -> Teacher:
    """The ancestry model with its streams, in memory or in files."""
    ancestry = tiny_ancestry(spec=spec)
    settings = Calibration(images=24)
    return teacher_of(
        {name: ancestry.state[name] for name in ancestry.state if not name.startswith("head.")},
        ancestry.spec,
        settings,
        tiny_task(),
        ancestry.input_format,
        Run(seed=1),
        folder,
    )


def test_the_costs_of_runs_are_errors_of_ridge_regressions() -> None:
    from lgzoo_closed_form.solve import costs_of_runs

    teacher, rho = recorded(SPEC.with_(layer_scale=0.1)), 1e-2
    costs, root = costs_of_runs(teacher, rho), teacher.shown.weights.sqrt()[:, None]

    def centred(rows: torch.Tensor) -> torch.Tensor:
        return root * (rows.double() - (root.square() * rows).sum(0) / root.square().sum())

    for first in range(SPEC.layers):
        block, middle = teacher.model.blocks[first], teacher.streams.middle[first]
        with torch.no_grad():
            hidden = centred(block.mlp.act(block.mlp.fc1(block.norm2(middle))))
            start = (block.ls2.gamma[:, None] * block.mlp.fc2.weight).double()
        penalty = (rho * hidden.square().sum(dim=0).mean()).sqrt()
        wide = torch.cat([hidden, penalty * torch.eye(SPEC.hidden, dtype=torch.float64)])
        assert costs[first][0] == 0
        for last in range(first + 1, SPEC.layers):
            leaving = teacher.streams.before[last + 1]
            wanted = centred(leaving - middle)
            weight = torch.linalg.lstsq(wide, torch.cat([wanted, penalty * start.T])).solution
            expected = float((hidden @ weight - wanted).square().sum() / centred(leaving).square().sum())
            assert costs[first][last - first] == pytest.approx(expected, rel=1e-6)


def normal_equations(inputs, targets, weights, layer, start, rho):  # type: ignore[no-untyped-def]
    """How far a layer is from where the gradient of its regression is 0, as a share of the gradient at its start."""
    centred = layer.bias is not None
    means = [(rows.double() * weights[:, None]).sum(0) / weights.sum() * centred for rows in (inputs, targets)]
    rows, wanted = inputs.double() - means[0], targets.double() - means[1]
    penalty = rho * (rows.square() * weights[:, None]).sum(0).mean()
    found, copied = layer.weight.double(), start.weight.double()
    gradients = [
        (weight @ rows.T - wanted.T) @ (rows * weights[:, None]) + penalty * (weight - copied)
        for weight in (found, copied)
    ]
    if centred:
        torch.testing.assert_close(layer.bias.double(), means[1] - found @ means[0], atol=1e-5, rtol=1e-4)
    return float(gradients[0].norm() / gradients[1].norm())


KINDS: list[dict[str, object]] = [
    {},
    {"layer_scale": 0.1},
    {"qkv_bias": False},
    {"mlp": "swiglu"},
    {"mlp": "swiglu_packed"},
    {"qk_norm": True},
]


@pytest.mark.parametrize("changes", KINDS, ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_every_layer_of_the_last_block_solves_its_regression(changes: dict[str, object], heads: int) -> None:
    teacher, runs, rho = recorded(SPEC.with_(**changes)), [0, 2], 1e-2
    check_the_last_block(teacher, runs, rho, heads)


@pytest.mark.parametrize("changes", EVAS, ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_every_layer_of_the_last_block_of_an_eva_does(changes: dict[str, object], heads: int) -> None:
    check_the_last_block(recorded(EVA.with_(**changes)), [0, 2], 1e-2, heads)


@pytest.mark.parametrize("changes", WHOLE, ids=str)
def test_so_does_one_of_an_eva_that_keeps_its_width(changes: dict[str, object]) -> None:
    check_the_last_block(recorded(EVA.with_(**changes)), [0, 2], 1e-2, 2)


@torch.no_grad()
def check_the_last_block(teacher: Teacher, runs: Sequence[int], rho: float, heads: int) -> None:
    """Of a model of two layers: no gradient is left in any of its linear layers."""
    spec = teacher.spec.with_(layers=2, width=heads * SPEC.head_width, heads=heads)
    columns, _ = directions(teacher.streams, teacher.shown)
    narrowing = projection(columns, spec.width) if heads == 1 else None
    copied, kept_heads, kept_neurons = start(teacher, spec, runs, narrowing)
    before, model = (
        model_of(spec, filled(spec, parts, seed=0))
        for parts in (copied, solved(teacher, spec, runs, narrowing, rho=rho))
    )
    streams, weights = record(model, teacher.shown), teacher.shown.weights
    P_dD = torch.eye(SPEC.width) if narrowing is None else narrowing.float()
    turn = stem(model, teacher.shown.images[:1])[1][-1]
    new, copies = branches(model.blocks[-1], turn), branches(before.blocks[-1], turn)
    wanted = teacher.streams.middle[2] @ P_dD.T, teacher.streams.before[-1] @ P_dD.T
    entering, entered = (teacher.streams.before[2], teacher.streams.middle[2]), (streams.before[-2], streams.middle[-1])
    wide = SPEC.head_width
    channels = [head * wide + channel for head in kept_heads[-1] for channel in range(wide)]
    reads = streams.heads[-1], new[1].read(streams.middle[-1])
    for number, chosen in enumerate((channels, kept_neurons[-1])):
        branch, old = new[number], teacher.branches(2)[number]
        gamma = torch.ones(1) if branch.gamma is None else branch.gamma
        missing = (wanted[number] - entered[number]) / gamma
        assert normal_equations(reads[number], missing, weights, branch.writer, copies[number].writer, rho) < 1e-3
        for reader, source, begun in zip(branch.readers, old.readers, copies[number].readers):
            values = source.only(chosen)(old.norm(entering[number]))
            assert normal_equations(branch.norm(entered[number]), values, weights, reader, begun, rho) < 1e-3


def test_streams_in_files_are_those_in_memory(tmp_path: Path) -> None:
    memory, files = recorded().streams, recorded(folder=tmp_path).streams
    for kind in ("before", "middle", "heads"):
        assert len(getattr(memory, kind)) == len(getattr(files, kind))
        assert all(torch.equal(one, other) for one, other in zip(getattr(memory, kind), getattr(files, kind)))
    taken = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert taken == size_of(SPEC, 24, SPEC.tokens) == 4 * 24 * SPEC.tokens * SPEC.width * (3 * SPEC.layers + 1)


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
    else:
        small = lg.expand(made, layers=2, width=spec.head_width)
        assert small.model()(torch.zeros(1, 3, 16, 16)).isfinite().all()


def test_learned_rotary_frequencies_go_with_their_blocks_and_heads() -> None:
    spec = EVA.with_(rope_type="mixed")
    state = {name: tensor for name, tensor in tiny_ancestry(spec=spec).state.items() if not name.startswith("head.")}
    P_dD = projection(torch.linalg.qr(torch.randn(spec.width, spec.width).double())[0], spec.head_width)
    neurons = list(range(spec.hidden // 2))
    made = narrowed_parts(state, spec, P_dD, [0, 3], [[1], [0]], [neurons, neurons])
    expected = torch.stack([state["rope.freqs"][:, 0, 1:], state["rope.freqs"][:, 3, :1]], dim=1)
    assert torch.equal(made["rope.freqs"], expected)


def test_shifts_of_norms_go_to_the_biases_beside_joint_queries_keys_and_values() -> None:
    generator = torch.Generator().manual_seed(0)
    state = dict(tiny_ancestry(spec=EVA).state)
    shift = torch.randn(EVA.width, generator=generator)
    block = {name: tensor for name, tensor in state.items() if name.startswith("blocks.0.")}
    made = folded({**block, "blocks.0.norm1.bias": shift}, table_of(EVA))
    query, _, value = (block["blocks.0.attn.qkv.weight"] @ shift).chunk(3)
    torch.testing.assert_close(made["blocks.0.attn.q_bias"] - block["blocks.0.attn.q_bias"], query)
    torch.testing.assert_close(made["blocks.0.attn.v_bias"] - block["blocks.0.attn.v_bias"], value)


def test_norms_after_attention_and_mlp_are_refused() -> None:
    with pytest.raises(WrongCall, match="does not take models with norms after attention and MLP"):
        Measure().outline([EVA.with_(post_norm=True, layer_scale=None)])


@pytest.mark.parametrize("spec", [SPEC, *(EVA.with_(**changes) for changes in (*EVAS, *WHOLE))], ids=repr)
@torch.no_grad()
def test_the_last_recorded_stream_is_what_timm_computes(spec: Spec) -> None:
    teacher = recorded(spec)
    expected = teacher.shown.rows(teacher.model.forward_features(teacher.shown.images))
    torch.testing.assert_close(teacher.model.norm(teacher.streams.before[-1]), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("spec", [SPEC, EVA, EVA.with_(swiglu=True)], ids=repr)
@torch.no_grad()
def test_what_reads_the_narrow_stream_reads_the_same(spec: Spec) -> None:
    generator = torch.Generator().manual_seed(0)
    state = dict(tiny_ancestry(spec=spec).state)
    for name in ("blocks.0.norm1.weight", "blocks.0.norm1.bias"):
        state[name] = torch.randn(spec.width, generator=generator)
    state = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
    raw = torch.randn(spec.width, spec.width, generator=generator, dtype=torch.float64)
    columns, small = torch.linalg.qr(raw - raw.mean(dim=0))[0], spec.with_(layers=1, width=spec.head_width, heads=1)
    P_dD, neurons = projection(columns, small.width), list(range(small.hidden))
    made = narrowed_parts(state, spec, P_dD, [0], [[1]], [neurons])
    wide, narrow = (
        branches(model_of(one, filled(one, parts, seed=0)).blocks[0])[0]
        for one, parts in ((spec.with_(classes=0), state), (small.with_(classes=0), made))
    )
    tokens = 100 * torch.randn(5, small.width - 1, generator=generator).double() @ columns[:, : small.width - 1].T
    chosen = range(spec.head_width, 2 * spec.head_width)
    for new, old in list(zip(narrow.readers, wide.readers))[:: 2 if spec.family == "eva" else 1]:  # keys have no bias
        read = new(narrow.norm((tokens @ P_dD.T).float()))
        torch.testing.assert_close(read, old.only(chosen)(wide.norm(tokens.float())), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("group", [None, 6])
def test_all_widths_have_their_directions_from_one_basis(group: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    columns = torch.linalg.qr(torch.randn(36, 36, generator=generator, dtype=torch.float64))[0]
    narrow, wide = (projection(columns, width, group) for width in (12, 24))
    for made in (narrow, wide):
        lost = 1 if group is None else len(made) // group
        torch.testing.assert_close(torch.linalg.svdvals(made)[:-lost], torch.ones(len(made) - lost).double())
        assert torch.linalg.svdvals(made)[-lost:].max() < 1e-9
        torch.testing.assert_close(made.unflatten(0, (lost, -1)).mean(dim=1), torch.zeros(lost, 36).double())
    if group is None:  # the first coefficients of the wide stream are those of the narrow one
        coefficients = complement(24).T @ wide
        torch.testing.assert_close(complement(12) @ coefficients[:11], narrow)
    else:
        torch.testing.assert_close(wide[:12], narrow)


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
