"""SnapViT: evolution strategy, curvature, agreement of features, and laws of the ranking."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import count_cost, load_family
from learngene_zoo.families.tensors import build_model
from learngene_zoo.method.sizes import Target
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import list_settings
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_closed_form.calibration import Calibration, derive_input_format, sample_pictures
from lgzoo_closed_form.elastic import (
    FIFTIETHS,
    ElasticExpander,
    ElasticExtractor,
    Evolution,
    RankingSettings,
    Sensitivity,
    rank_units,
)
from lgzoo_closed_form.modules.agreement import (
    Agreement,
    compute_components,
    mask_model,
    scale_scores,
)
from lgzoo_closed_form.modules.curvature import (
    LARGE,
    SMALL,
    compute_consistency_loss,
    draw_crops,
    extract_features,
    measure_curvatures,
)
from lgzoo_closed_form.modules.cutting import Selection, cut_model
from lgzoo_closed_form.modules.xnes import Minimum, compute_utilities, minimise
from lgzoo_closed_form.pruned import select_shares
from lgzoo_closed_form.sizes import Counts, derive_uneven_spec

SPEC = load_family("vit").examples[0].with_(layers=4, width=48, heads=3, classes=0)
ANCESTRY = make_tiny_ancestry(spec=SPEC)
SMOKE = ElasticExtractor(
    each=RankingSettings(
        sensitivity=Sensitivity(images=6, crops=2),
        evolution=Evolution(evaluations=20, sparsities=(0.2, 0.65), compared=16, components=8),
    )
)


@pytest.fixture(autouse=True)
def tiny_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "learngene_zoo.tasks.catalogue._open_named", lambda name, offline: make_tiny_task(name)
    )


@pytest.fixture(scope="module")
def learngene() -> lg.Learngene:
    return extract_smoke(ANCESTRY)


def extract_smoke(ancestry: Ancestry) -> lg.Learngene:
    """Extract a learngene of an ancestry model."""
    learngene = SMOKE([ancestry], [make_tiny_task()], Run(seed=1))
    return learngene.with_config(method="elastic", ancestries=(ancestry.record,))


def random_images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


# The evolution strategy.


@pytest.mark.parametrize("seed", range(3))
def test_the_strategy_finds_the_minimum_of_a_quadratic(seed: int) -> None:
    centre, sharp = (
        torch.tensor([1.0, -2.0, 0.5, 3.0]).double(),
        torch.tensor([1.0, 10.0, 0.3, 3.0]).double(),
    )
    minimum = minimise(
        lambda x: float((sharp * (x - centre).square()).sum()),
        torch.zeros(4),
        evaluations=1500,
        spread=1.0,
        seed=seed,
    )
    assert (minimum.best - centre).abs().max() < 1e-2
    assert len(minimum.losses) == 1500
    assert minimum.losses[0] == pytest.approx(float((sharp * centre.square()).sum()))
    assert minimum.loss == pytest.approx(float((sharp * (minimum.best - centre).square()).sum()))


def test_only_the_order_of_losses_matters() -> None:
    def bowl(x: torch.Tensor) -> float:
        return float((x - 1).square().sum())

    first, second = (
        minimise(loss, torch.zeros(5), evaluations=60, spread=0.5, seed=3)
        for loss in (bowl, lambda x: math.exp(bowl(x)) - 7)
    )
    assert torch.equal(first.best, second.best)
    assert [math.exp(loss) - 7 for loss in first.losses] == pytest.approx(second.losses)


def test_a_generation_by_number() -> None:
    """The second generation follows from the first by the formulas, number by number."""
    size, count = 3, 7
    vectors: list[torch.Tensor] = []

    def loss(x: torch.Tensor) -> float:
        vectors.append(x.clone())
        return float((x * torch.tensor([1.0, 4.0, 9.0])).square().sum())

    minimise(loss, torch.ones(size), evaluations=1 + 2 * count, spread=0.4, seed=5)
    generator = torch.Generator().manual_seed(5)
    draws = [torch.randn(count, size, generator=generator, dtype=torch.float64) for _ in range(2)]
    order = sorted(range(count), key=lambda k: loss(1 + 0.4 * draws[0][k]))
    raw = [max(0.0, math.log(count / 2 + 1) - math.log(k)) for k in range(1, count + 1)]
    worth = [value / sum(raw) - 1 / count for value in raw]
    ranked = [draws[0][k] for k in order]
    slope = sum(u * z for u, z in zip(worth, ranked))
    M = sum(u * (torch.outer(z, z) - torch.eye(size)) for u, z in zip(worth, ranked))
    growth, rate = float(M.trace()) / size, (9 + 3 * math.log(size)) / (5 * size * math.sqrt(size))
    exponent = rate / 2 * (M - growth * torch.eye(size))
    power, shape = torch.eye(size).double(), torch.zeros(size, size).double()
    for step in range(1, 20):
        shape = shape + power
        power = power @ exponent / step
    mean, scale = 1 + 0.4 * slope, 0.4 * math.exp(rate / 2 * growth)
    for k in range(count):
        torch.testing.assert_close(vectors[1 + count + k], mean + scale * shape @ draws[1][k])


def test_the_best_is_never_worse_than_the_start() -> None:
    generator = torch.Generator().manual_seed(0)
    minimum = minimise(
        lambda x: float(torch.rand(1, generator=generator)),
        torch.ones(6),
        evaluations=11,
        spread=1.0,
        seed=0,
    )
    assert len(minimum.losses) == 11
    assert minimum.loss <= minimum.losses[0]
    single = minimise(lambda x: 0.0, torch.ones(6), evaluations=1, spread=1.0, seed=0)
    assert torch.equal(single.best, torch.ones(6).double())


@pytest.mark.parametrize("count", [4, 7, 15])
def test_worths_fall_and_cancel(count: int) -> None:
    utilities = compute_utilities(count).tolist()
    assert sum(utilities) == pytest.approx(0, abs=1e-7)
    assert utilities == sorted(utilities, reverse=True)
    assert utilities[-1] == pytest.approx(-1 / count)


# The curvature.


def test_crops_have_the_areas_of_large_and_small_ones() -> None:
    line = torch.arange(32.0)
    image = torch.stack([line.expand(32, 32), line[:, None].expand(32, 32), torch.ones(32, 32)])
    areas = []
    for number in range(40):
        views = draw_crops(image, 7, number, 3)
        assert views.shape == (5, 3, 32, 32)
        assert views[:, 2].allclose(torch.ones(5, 32, 32))
        areas.append(
            [
                (float(v[0].max() - v[0].min()) + 1) * (float(v[1].max() - v[1].min()) + 1) / 1024
                for v in views
            ]
        )
    shares = torch.tensor(areas)
    for part, (least, most) in ((shares[:, :2], LARGE), (shares[:, 2:], SMALL)):
        assert least * 0.85 < part.min() < least + 0.1
        assert most - 0.12 < part.max() < most * 1.15
    assert torch.equal(draw_crops(image, 7, 4, 3), draw_crops(image, 7, 4, 3))
    assert not torch.equal(draw_crops(image, 7, 4, 3), draw_crops(image, 7, 5, 3))


def test_consistency_by_number() -> None:
    features = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).double()
    expected = 0.0
    for teacher in range(2):
        for student in range(4):
            if student != teacher:
                p, q = (
                    (row / row.square().sum().sqrt()).exp()
                    for row in (features[teacher], features[student])
                )
                expected -= float((p / p.sum() * (q / q.sum()).log()).sum())
    assert float(compute_consistency_loss(features)) == pytest.approx(expected)


def test_curvature_is_the_mean_of_squares_over_images() -> None:
    model, images = build_model(SPEC, ANCESTRY.state), random_images(3)
    heads, hidden = measure_curvatures(model, SPEC, images, num_small=2, seed=9)
    of_heads, of_hidden = torch.zeros(4, 3).double(), torch.zeros(4, 192).double()
    for number, image in enumerate(images):
        model.zero_grad()
        compute_consistency_loss(
            extract_features(model, SPEC, draw_crops(image, 9, number, 2))
        ).backward()
        for block in range(4):
            values = model.blocks[block].attn.qkv.weight.grad[96:].double()
            of_heads[block] += torch.stack(
                [values[16 * head : 16 * head + 16].square().mean() for head in range(3)]
            )
            of_hidden[block] += (
                model.blocks[block].mlp.fc1.weight.grad.double().square().mean(dim=1)
            )
    torch.testing.assert_close(heads, of_heads / of_heads.mean(), rtol=1e-5, atol=0)
    torch.testing.assert_close(hidden, of_hidden / of_hidden.mean(), rtol=1e-5, atol=0)


def test_views_that_agree_have_no_slope() -> None:
    """The loss of equal crops is minimal where the student equals the teacher."""
    model = build_model(SPEC, ANCESTRY.state)
    heads, hidden = measure_curvatures(
        model, SPEC, torch.full((2, 3, 16, 16), 0.3), num_small=2, seed=0
    )
    assert heads.isfinite().all()
    unit = extract_features(model, SPEC, torch.full((4, 3, 16, 16), 0.3))
    assert (
        torch.autograd.grad(compute_consistency_loss(unit), model.blocks[0].mlp.fc1.weight)[0]
        .abs()
        .max()
        < 1e-6
    )
    assert hidden.shape == (4, 192)


# The agreement.


def test_silenced_heads_and_neurons_are_as_good_as_gone() -> None:
    model, images = build_model(SPEC, ANCESTRY.state), random_images(4)
    selection = Selection(
        [[0, 2], [1], [0, 1, 2], [2]], [list(range(0, 192, step)) for step in (1, 2, 3, 4)]
    )
    counts = Counts((2, 1, 3, 1), (192, 96, 64, 48))
    small = build_model(
        derive_uneven_spec(SPEC, counts), cut_model(ANCESTRY.state, SPEC, selection)
    )
    with torch.no_grad():
        full, target = model(images), small(images)
        with mask_model(model, SPEC, selection):
            torch.testing.assert_close(model(images), target, atol=1e-5, rtol=0)
        assert torch.equal(model(images), full)
    assert (full - target).abs().max() > 0.1


def build_agreement(shares: list[tuple[float, float]]) -> Agreement:
    model, images = build_model(SPEC, ANCESTRY.state), random_images(12)
    scores = measure_curvatures(model, SPEC, images[:3], num_small=1, seed=0)
    return Agreement.from_images(model, SPEC, scores, images, shares, 5)


def test_a_whole_model_agrees_and_a_smaller_one_less() -> None:
    ones = torch.ones(4 + 12)
    losses = [build_agreement([(share, share)]).compute_loss(ones) for share in (1.0, 0.7, 0.3)]
    assert losses[0] == pytest.approx(0, abs=1e-6)
    assert 1e-3 < losses[1] < losses[2]
    mean_loss = build_agreement([(0.7, 0.7), (0.3, 0.3)]).compute_loss(ones)
    assert mean_loss == pytest.approx((losses[1] + losses[2]) / 2, abs=1e-6)


def test_the_cosines_are_those_of_the_principal_components() -> None:
    agreement, factors = (
        build_agreement([(0.5, 0.5)]),
        torch.rand(16, generator=torch.Generator().manual_seed(1)) + 0.5,
    )
    heads, hidden = scale_scores(agreement.scores, factors)
    selection = Selection(
        [sorted(row) for row in select_by_force(heads.tolist(), 1, 6)],
        [sorted(row) for row in select_by_force(hidden.tolist(), 24, 384)],
    )
    with torch.no_grad():
        full = agreement.model(agreement.images)
        with mask_model(agreement.model, SPEC, selection):
            small = agreement.model(agreement.images)
    centred = (full - full.mean(dim=0)).double()
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    target, features = (
        centred @ vectors[:, -5:],
        (small - full.mean(dim=0)).double() @ vectors[:, -5:],
    )
    cosines = (target * features).sum(1) / (
        target.square().sum(1) * features.square().sum(1)
    ).sqrt()
    assert agreement.compute_loss(factors) == pytest.approx(1 - float(cosines.mean()), abs=1e-5)
    assert agreement.compute_loss(-factors) == agreement.compute_loss(factors)


def select_by_force(scores: list[list[float]], least: int, count: int) -> list[list[int]]:
    """Return the best of each block, then the best of all others, by brute force."""
    best = [sorted(range(len(row)), key=lambda i: row[i])[-least:] for row in scores]
    rest = [
        (value, b, i)
        for b, row in enumerate(scores)
        for i, value in enumerate(row)
        if i not in best[b]
    ]
    for _, block, index in sorted(rest, reverse=True)[: count - least * len(scores)]:
        best[block].append(index)
    return best


def test_factors_are_of_the_neurons_of_each_block_and_of_each_head() -> None:
    scores = torch.ones(2, 3), torch.ones(2, 4)
    heads, hidden = scale_scores(scores, torch.tensor([2.0, -3.0, 1, 2, 3, 4, -5, 6]))
    assert heads.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert hidden.tolist() == [[2] * 4, [3] * 4]


def test_principal_components_are_ordered_and_orthonormal() -> None:
    rows = (
        torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1.0, 5, 2, 1, 9, 3])
        + 4
    )
    mean, directions = compute_components(rows, 3)
    torch.testing.assert_close(directions.T @ directions, torch.eye(3), atol=1e-5, rtol=0)
    variances = ((rows - mean) @ directions).var(dim=0).tolist()
    assert variances == sorted(variances, reverse=True)
    assert variances[0] == pytest.approx(81, rel=0.4)


# The ranking.


def test_what_a_smaller_model_keeps_a_larger_one_keeps(learngene: lg.Learngene) -> None:
    details, compute_shares = learngene.config.details, RankingSettings().compute_shares
    selections = []
    for heads, hidden, keep in zip(details["heads"], details["hidden"], FIFTIETHS):
        selection = select_shares(
            learngene, compute_shares(keep), Counts(tuple(heads), tuple(hidden))
        )
        assert selection == select_shares(learngene, compute_shares(keep), None)
        selections.append(selection)
    for small, large in pairwise(selections):
        for fewer, more in ((small.heads, large.heads), (small.hidden, large.hidden)):
            assert all(set(a) <= set(b) for a, b in zip(fewer, more))
    assert [sum(map(len, selection.hidden)) for selection in selections] == [
        round(keep * 768) for keep in FIFTIETHS
    ]


def test_every_budget_is_kept_and_well_used(learngene: lg.Learngene) -> None:
    full = count_cost(SPEC)
    sizes = [
        count_cost(member.spec).params for member in ElasticExpander().family(learngene.config)
    ]
    assert sizes == sorted(sizes)
    for share in (0.45, 0.6, 0.75, 0.9):
        descendant = lg.expand(learngene, max_params=int(share * full.params))
        assert share - 0.05 < count_cost(descendant.spec).params / full.params <= share
        assert (
            sum(parameter.numel() for parameter in descendant.model().parameters())
            == count_cost(descendant.spec).params
        )


def test_the_evolution_is_never_worse_than_its_start(learngene: lg.Learngene) -> None:
    details = learngene.config.details
    assert 0 < details["start"] <= details["reached"] < 1
    again = SMOKE([ANCESTRY], [make_tiny_task()], Run(seed=1))
    assert again.config.details == details
    assert all(torch.equal(again.state[name], learngene.state[name]) for name in learngene.state)


def test_the_start_is_a_line_through_the_blocks() -> None:
    sensitivity, evolution = (
        Sensitivity(images=6, crops=2),
        Evolution(evaluations=1, first=2.0, last=0.5, compared=8),
    )
    learngene = ElasticExtractor(
        each=RankingSettings(sensitivity=sensitivity, evolution=evolution)
    )([ANCESTRY], [make_tiny_task()], Run(seed=1))
    run = Run(seed=1).part("ranking")
    images = sample_pictures(
        SPEC, Calibration(images=8), make_tiny_task(), derive_input_format(learngene.config), run
    ).images[:6]
    model, seed = build_model(SPEC, ANCESTRY.state), derive_seed(run.seed, "crops")
    line = torch.tensor([2.0, 1.5, 1.0, 0.5])[:, None]
    for name, scores in zip(
        ("heads", "hidden"), measure_curvatures(model, SPEC, images, num_small=2, seed=seed)
    ):
        expected = (scores * line / (scores * line).mean()).float()
        torch.testing.assert_close(
            learngene.state[f"importance.{name}"], expected, rtol=1e-4, atol=1e-6
        )
    assert learngene.config.details["start"] == learngene.config.details["reached"]


def test_the_recorded_agreement_is_that_of_the_models_that_are_built(
    learngene: lg.Learngene,
) -> None:
    """Descendants without compensation, whose features are compared independently."""
    input_format, run = derive_input_format(learngene.config), Run(seed=1).part("ranking")
    images = sample_pictures(
        SPEC, Calibration(images=16), make_tiny_task(), input_format, run
    ).images
    with torch.no_grad():
        full = build_model(SPEC, ANCESTRY.state)(images)
        mean, directions = compute_components(full, 8)
        cosines = []
        for keep in (0.8, 0.35):
            small = lg.expand(learngene, keep=keep, compensate=False).model()
            features = (small.forward_features(images)[:, 0] - mean) @ directions
            cosines.append(
                torch.nn.functional.cosine_similarity(features, (full - mean) @ directions).mean()
            )
    assert float(sum(cosines)) / 2 == pytest.approx(learngene.config.details["reached"], abs=1e-5)


@pytest.mark.parametrize(
    ("cut_away", "heads"), [(0.15, 0.0), (0.35, 0.2), (0.55, 0.4), (0.65, 0.5), (0.0, 0.0)]
)
def test_shares_of_heads_are_those_of_the_authors_script(cut_away: float, heads: float) -> None:
    assert RankingSettings().compute_shares(1 - cut_away) == (
        pytest.approx(1 - heads),
        1 - cut_away,
    )
    assert RankingSettings(lead=0.0).compute_shares(1 - cut_away) == (
        pytest.approx(1 - cut_away),
        1 - cut_away,
    )


def test_with_nothing_cut_the_ancestry_model_is_left(learngene: lg.Learngene) -> None:
    for expander in (
        ElasticExpander(),
        ElasticExpander(keep=1.0),
        ElasticExpander(compensate=False),
    ):
        descendant = lg.expand(learngene, expander=expander)
        assert descendant.spec == SPEC
        assert all(
            torch.equal(descendant.state[name], learngene.state[name])
            for name in descendant.inherited
        )


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            {"heads": 2},
            "heads is 2, but each block keeps what the ranking leaves it; leave out heads",
        ),
        ({"mlp_ratio": 2.0}, "leave out mlp_ratio, and name keep or a budget"),
        ({"layers": 2}, "layers is 2, but all descendants of this learngene have layers 4"),
    ],
)
def test_sizes_that_the_ranking_does_not_leave_are_refused(
    learngene: lg.Learngene, sizes: dict[str, float], said: str
) -> None:
    with pytest.raises(WrongCall, match=said):
        lg.expand(learngene, target=Target(**sizes))  # type: ignore[arg-type]


def test_what_is_wrong_is_named(learngene: lg.Learngene, tmp_path: Path) -> None:
    broken = learngene.with_config(details={**learngene.config.details, "hidden": [[1, 1, 1, 1]]})
    with pytest.raises(BadFile, match="details has 41 and 1 cuts for 41 shares; extract it again"):
        lg.expand(broken, keep=0.5)
    state = {name: learngene.state[name] for name in learngene.state if name != "importance.heads"}
    with pytest.raises(
        BadFile, match=r"the elastic learngene lacks importance.heads of shape \(4, 3\)"
    ):
        lg.expand(replace(learngene, state=state), keep=0.5)
    with pytest.raises(WrongCall, match="sparsities has no value; name one or more"):
        Evolution(sparsities=())
    with pytest.raises(
        WrongCall, match="elastic does not take models with norms after attention and MLP"
    ):
        ElasticExtractor().outline([SPEC.with_(post_norm=True)])


def test_without_stored_weights_only_the_ranking_is_kept() -> None:
    learngene = replace(SMOKE, store=False)([ANCESTRY], [make_tiny_task()], Run(seed=1))
    assert set(learngene.state) == {"importance.heads", "importance.hidden"}
    assert learngene.config.details["stored"] is False


@pytest.mark.parametrize(
    "changes",
    [
        {"mlp": "swiglu"},
        {"mlp": "swiglu_packed"},
        {"class_token": False, "pool": "avg"},
        {"dense": True, "classes": 3},
    ],
)
def test_other_models_are_ranked(changes: dict[str, object]) -> None:
    spec = SPEC.with_(**changes)
    learngene = extract_smoke(make_tiny_ancestry(spec=spec))
    small = lg.expand(learngene, keep=0.5)
    assert count_cost(small.spec).params < 0.8 * count_cost(spec).params
    assert small.model()(torch.zeros(1, 3, 16, 16)).isfinite().all()


def test_the_ranking_is_measured_as_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings are passed on; `start` is the first loss, `reached` the best."""
    calls: dict[str, object] = {}

    def spy_on_curvatures(*arguments: Any, **options: Any) -> Any:
        calls["images"] = len(arguments[2])
        calls["num_small"] = options["num_small"]
        return measure_curvatures(*arguments, **options)

    def minimise_at_once(loss: Any, start_N: torch.Tensor, **options: Any) -> Minimum:
        calls.update(options)
        calls["start"] = start_N
        return Minimum(best=start_N.double(), losses=[0.5, 0.25, 0.75])

    monkeypatch.setattr("lgzoo_closed_form.modules.curvature.measure_curvatures", spy_on_curvatures)
    monkeypatch.setattr("lgzoo_closed_form.modules.agreement.minimise", minimise_at_once)
    search = RankingSettings(
        sensitivity=Sensitivity(images=5, crops=3),
        evolution=Evolution(
            evaluations=9,
            spread=0.4,
            first=1.5,
            last=0.5,
            sparsities=(0.5,),
            compared=6,
            components=4,
        ),
    )
    _, details = rank_units(search, ANCESTRY, make_tiny_task(), Run(seed=1))
    assert (details["start"], details["reached"]) == (0.5, 0.75)  # cosines: 1 less the losses
    start = calls.pop("start")
    assert calls == {
        "images": 5,
        "num_small": 3,
        "evaluations": 9,
        "spread": 0.4,
        "seed": derive_seed(1, "evolution"),
    }
    lines = torch.tensor([1.5, 7 / 6, 5 / 6, 0.5])  # of four blocks, then of three heads in each
    torch.testing.assert_close(start, torch.cat([lines, lines.repeat_interleave(3)]))


def test_compensation_uses_the_default_images_and_tokens(
    learngene: lg.Learngene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings of an extraction are those of its ranking (docs/methods/elastic.md)."""
    names = {setting.name for setting in list_settings(ElasticExtractor())}
    assert not names & {"tokens", "class_weight", "ridge"}
    used: list[Calibration] = []

    def sample(spec: Any, settings: Calibration, *inputs: Any) -> Any:
        used.append(settings)
        return sample_pictures(spec, settings, *inputs)

    monkeypatch.setattr("lgzoo_closed_form.pruned.sample_pictures", sample)
    lg.expand(learngene, keep=0.5)
    assert used == [Calibration()]
