"""Hypernetworks for GPT-2: graphs and predictions of the released code, and inherited embeddings.

tests/data/tal/gpt2 has a small hypernetwork of LoGAH's code for GPT-2 with random weights, and for
three models with a separate head (meta.json) its graphs and all predicted tensors.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from learngene_zoo import lifecycle
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.bert import FAMILY as BERT
from learngene_zoo.families.family import count_params
from learngene_zoo.families.forward import compute_pooled, compute_tokens
from learngene_zoo.families.gpt2.spec import Gpt2Spec
from learngene_zoo.families.tensors import build_model, get_shapes, initialise
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe, from_json, to_json
from learngene_zoo.tasks.loader import sample_images
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_tal.architectures import draw_architectures, scale_rule
from lgzoo_tal.config import Curriculum, Guidance, MetaStep, Stage, build_stages
from lgzoo_tal.hypernet_spec import CUTOFF, HypernetSpec, LowRank, check_target
from lgzoo_tal.logah import LOGAH
from lgzoo_tal.modules import text_embeddings
from lgzoo_tal.modules.graph import SINK, Graph
from lgzoo_tal.modules.hypernet import Hypernet, build_graph_for
from lgzoo_tal.modules.mixture import TaskBatch
from lgzoo_tal.modules.objective import MetaObjective, TaskSpec
from lgzoo_tal.modules.objective import compute_tokens as compute_student
from lgzoo_tal.modules.text_embeddings import Tables, read_tables, store_embeddings
from lgzoo_tal.modules.text_graph import build_text_graph
from lgzoo_tal.tal import TAL

pytest.importorskip("transformers")

DATA = Path(__file__).parents[1] / "data" / "tal" / "gpt2"
META: dict[str, Any] = json.loads((DATA / "meta.json").read_text(encoding="utf-8"))
GPT2 = Gpt2Spec(
    layers=12, width=768, heads=12, classes=0, vocabulary=50257, positions=1024, pad_token=0
)
TINY = Gpt2Spec(layers=3, width=32, heads=4, classes=3, vocabulary=90, positions=12, pad_token=0)
SMALL = LowRank(hidden=16, layers=2, heads=2, rank=4, widest=64, chunk=512)
TASKS = {"tiny-a": 3, "tiny-b": 3}  # with their classes
each_target = pytest.mark.parametrize("name", META["targets"])


def build_published() -> Hypernet:
    """Build the hypernetwork of the files."""
    sizes = {"hid": "hidden", **{name: name for name in META["hypernet"] if name != "hid"}}
    spec = HypernetSpec(
        **{ours: META["hypernet"][theirs] for theirs, ours in sizes.items()},
        inputs="texts",
        embeddings="predicted",
        scale="std",
        cutoff=250,
    )
    hypernet, stored = Hypernet(spec), load_file(DATA / "hypernet.safetensors")
    hypernet.load_state_dict({name: stored[name] for name in hypernet.state_dict()})
    return hypernet


def build_target(name: str) -> Graph:
    """Build the graph of a model of the files, with a separate head."""
    target = META["targets"][name]
    sizes = {key: target[key] for key in ("layers", "width", "heads", "vocabulary", "positions")}
    return build_text_graph(
        Gpt2Spec(**sizes, classes=0, pad_token=0),
        msa=target["attention"] == "eager",
        cutoff=250,
        transposed=False,
        head=("lm_head.weight", (target["vocabulary"], target["width"])),
    )


# Graphs.


@each_target
def test_the_graph_is_that_of_the_released_code(name: str) -> None:
    graph, official = build_target(name), load_file(DATA / f"graph_{name}.safetensors")
    assert torch.equal(graph.types, official["types"])
    assert torch.equal(graph.distances, official["distances"])
    named = [
        node if "." in node else None  # else the name of an operation
        for node in META["targets"][name]["names"]
    ]
    assert list(graph.names) == named


@pytest.mark.parametrize("layers", [1, 3, 9, 12, 24])
@pytest.mark.parametrize("msa", [True, False])
def test_nodes_edges_and_longest_path_have_closed_forms(layers: int, msa: bool) -> None:
    spec = GPT2.with_(layers=layers, classes=2)
    graph = build_text_graph(spec, msa=msa, cutoff=250)
    assert len(graph) == 6 + (12 + msa) * layers
    assert int((graph.distances == 1).sum()) == 6 + (14 + msa) * layers
    assert int(graph.distances.max()) == 8 + msa + 2 * layers
    assert set(graph.sources) == set(get_shapes(spec))


@pytest.mark.parametrize(("layers", "longest"), [(24, 57), (36, 81), (48, 105)])
def test_the_cutoff_is_a_setting(layers: int, longest: int) -> None:
    """The numbers are those of GPT-2 medium, large and xl."""
    spec = GPT2.with_(layers=layers)
    hypernet = SMALL.build_spec().for_inputs(spec)
    assert int(build_graph_for(hypernet, spec).distances.max()) == CUTOFF
    complete = build_graph_for(hypernet.with_(cutoff=longest), spec)
    assert int(complete.distances.max()) == longest
    assert torch.equal(complete.distances, build_text_graph(spec, cutoff=250).distances)


def test_a_sink_reads_the_final_norm() -> None:
    graph = build_text_graph(TINY, sink=(5, TINY.width), cutoff=CUTOFF)
    assert graph.names[-3:] == ("transformer.ln_f.weight", *SINK)
    assert graph.distances[-3, -2:].tolist() == [1, 2]
    assert graph.tail == 3
    assert build_text_graph(TINY, cutoff=CUTOFF).tail == 1
    with pytest.raises(WrongCall, match="the sink's shape"):
        build_text_graph(TINY, sink=(5, 1), cutoff=CUTOFF)


def test_models_with_the_same_nodes_share_the_tensors_of_their_graphs() -> None:
    graph = build_text_graph(TINY, cutoff=CUTOFF)
    larger = TINY.with_(vocabulary=2 * TINY.vocabulary, width=2 * TINY.width)
    assert build_text_graph(larger, cutoff=CUTOFF).distances is graph.distances
    deeper = TINY.with_(layers=TINY.layers + 1)
    assert len(build_text_graph(deeper, cutoff=CUTOFF)) > len(graph)


def test_other_families_are_refused_in_one_line() -> None:
    with pytest.raises(WrongCall, match=r"'bert'.*norms come after.*use a GPT-2") as refused:
        build_text_graph(BERT.examples[0], cutoff=CUTOFF)
    assert "\n" not in str(refused.value)


# Predictions.


@each_target
def test_predictions_are_those_of_the_released_code(name: str) -> None:
    hypernet, graph = build_published(), build_target(name)
    official = load_file(DATA / f"predicted_{name}.safetensors")
    with torch.no_grad():
        differentiable = hypernet(graph)
    for predicted in (differentiable, hypernet.predict(graph)):
        assert predicted.keys() == official.keys()
        for key, tensor in official.items():
            assert (predicted[key] - tensor).abs().max() < 1e-6, key


def test_published_embeddings_repeat_and_inherited_ones_do_not() -> None:
    hypernet, graph = build_published(), build_target("a")
    words = hypernet.predict(graph)["transformer.wte.weight"]
    assert torch.equal(words[0], words[64])
    assert torch.equal(words[0], words[128])
    state = initialise(graph.spec, seed=0)
    hypernet.tables = read_tables(store_embeddings(state, graph.spec), graph.spec, "it")
    words = hypernet.predict(graph)["transformer.wte.weight"]
    assert torch.equal(words, state["transformer.wte.weight"])
    assert not torch.equal(words[0], words[64])


@pytest.mark.parametrize("form", ["published", "centred"])
def test_both_ways_to_predict_agree(form: str) -> None:
    spec = SMALL.build_spec().with_(form=form, places="relative", writers="by_depth")
    hypernet = Hypernet(spec.for_inputs(TINY), seed=1)
    graph = build_graph_for(hypernet.spec, TINY)
    with torch.no_grad():
        predicted = hypernet(graph)
    assert {name: tuple(tensor.shape) for name, tensor in predicted.items()} == get_shapes(TINY)
    for name, tensor in hypernet.predict(graph).items():
        assert torch.allclose(tensor, predicted[name], atol=1e-7), name


def test_matrices_are_scaled_by_their_inputs() -> None:
    """A Conv1D (inputs, outputs) has the scale of a linear layer with as many inputs."""
    hypernet = Hypernet(SMALL.build_spec().for_inputs(TINY), seed=1)
    graph = build_graph_for(hypernet.spec, TINY)
    scales = {
        name: scale
        for group, _, scale in hypernet.decode_blocks(graph)
        for name in group.names
        if group.role == "matrix"
    }
    block = "transformer.h.0."
    assert scales[f"{block}attn.c_attn.weight"] == pytest.approx((2 / TINY.width) ** 0.5)
    assert scales[f"{block}mlp.c_proj.weight"] == pytest.approx((2 / TINY.hidden) ** 0.5)


def test_centred_rows_of_queries_keys_and_values_interleave() -> None:
    """A narrow model's queries are a corner of a wide one's, as of images."""
    spec = SMALL.build_spec().with_(form="centred", widest=512, chunk=2048)
    hypernet = Hypernet(spec.for_inputs(TINY).with_(places="relative"), seed=1)
    name = "transformer.h.0.attn.c_attn.weight"
    target = TINY.with_(width=16, heads=2)
    columns = hypernet.predict(build_graph_for(hypernet.spec, target))[name]
    decoded = {
        member: blocks
        for group, blocks, _ in hypernet.decode_blocks(build_graph_for(hypernet.spec, target))
        for member, blocks in zip(group.names, blocks)
    }[name]
    rows = decoded.multiply() if hasattr(decoded, "multiply") else decoded
    scale = (2 / target.width) ** 0.5
    for part in range(3):  # queries, keys, values
        expected = scale * rows[part::3][:16]
        assert torch.allclose(columns[:, 16 * part : 16 * (part + 1)].T, expected, atol=1e-6)


def test_a_student_computes_as_the_model() -> None:
    state, words = initialise(TINY, seed=0), torch.tensor([[5, 7, 9, 0], [3, 2, 0, 0]])
    model = build_model(TINY, state)
    from learngene_zoo.families.text_format import Tokens

    inputs = Tokens(words, (words != 0).long())
    with torch.no_grad():
        student = compute_student(TINY, state, inputs)
        assert torch.allclose(student[:, 0], compute_pooled(model, inputs), atol=1e-6)
        last = compute_tokens(model, inputs)[[0, 1], [2, 1]]
    assert torch.allclose(student[:, 0], last, atol=1e-6)


# Inherited embeddings.


def test_a_projection_keeps_the_norm_of_the_largest_directions() -> None:
    """Of embeddings in the first directions LayerNorm's output has the same inner products."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(6, 32, generator=generator)
    basis -= basis.mean(dim=1, keepdim=True)
    tables = {
        "words": torch.randn(40, 6, generator=generator) @ basis,
        "positions": torch.randn(9, 6, generator=generator) @ basis,
    }
    narrowed = Tables(tables).narrow(16)
    for name, table in tables.items():
        assert narrowed[name].shape == (len(table), 16)
        gram = narrowed[name] @ narrowed[name].T
        assert torch.allclose(gram, table @ table.T, atol=1e-3)
        assert narrowed[name].mean(dim=1).abs().max() < 1e-5
    assert torch.equal(Tables(tables).narrow(32)["words"], tables["words"])


def test_few_narrowed_embeddings_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables({"words": torch.randn(10, 32), "positions": torch.randn(6, 32)})
    monkeypatch.setattr(text_embeddings, "MAX_STORED", 16 * (8 + 16))
    first = tables.narrow(8)
    assert tables.narrow(16) is tables.narrow(16)
    assert tables.narrow(8) is first
    assert tables.narrow(24)["words"].shape == (10, 24)
    assert tables.narrow(24) is tables.narrow(24)  # alone above the limit, and there
    again = tables.narrow(8)
    assert again is not first
    assert torch.equal(again["words"], first["words"])


def test_a_learngene_without_its_embeddings_is_refused() -> None:
    state = store_embeddings(initialise(TINY, seed=0), TINY)
    del state["ancestry.transformer.wpe.weight"]
    with pytest.raises(BadFile, match=r"there: expected the embedding .*wpe.weight with shape"):
        read_tables(state, TINY, "there")


def test_models_wider_than_inherited_embeddings_are_refused_in_one_line() -> None:
    spec = SMALL.build_spec().for_inputs(TINY)
    check_target(spec, TINY, TINY)
    with pytest.raises(WrongCall, match=r"width 32.*hypernet_embeddings=.predicted.") as refused:
        check_target(spec, TINY.with_(width=64), TINY)
    assert "\n" not in str(refused.value)
    check_target(spec.with_(embeddings="predicted"), TINY.with_(width=64), TINY)


# Architectures and settings.


def test_gpts_1k_is_the_official_set() -> None:
    """Parameters count a separate head, as the paper's models have it."""
    rule = scale_rule("gpts-1k", GPT2)
    specs = draw_architectures(rule)
    assert [(spec.layers, spec.width) for spec in specs[:10]] == [
        *((8, 160), (7, 136), (4, 152), (8, 72), (3, 184)),
        *((7, 128), (8, 168), (9, 144), (5, 160), (9, 112)),
    ]
    assert {spec.heads for spec in specs} == {8}
    assert len(set(specs)) == 81
    params = [
        (count_params(spec.with_(classes=0)) + spec.vocabulary * spec.width) / 1e6 for spec in specs
    ]
    assert round(fmean(params), 3) == 16.298
    assert round(pstdev(params), 3) == 4.758
    assert (round(min(params), 3), round(max(params), 3)) == (7.690, 28.364)


def test_sets_for_images_are_scaled_to_a_model_of_texts() -> None:
    rule = scale_rule("tal+", TINY)
    assert {spec.family for spec in draw_architectures(rule, count=20)} == {"gpt2"}
    assert max(width for _, width in rule.sizes) == TINY.width
    with pytest.raises(WrongCall, match="gpts-1k is a set of text models; choose one of"):
        scale_rule("gpts-1k", ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8))


def test_settings_of_texts_leave_hypernetworks_for_images_as_they_are() -> None:
    """Learngenes and parts of runs that exist keep their JSON."""
    image = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8)
    new = {"inputs", "cutoff", "embeddings", "scale"}
    assert not new & to_json(LowRank()).keys()
    asked = LowRank(embeddings="predicted", scale="std")
    settings = Curriculum(), MetaStep(), asked.build_spec()
    for ancestry, expected in ((image, set()), (TINY, new - {"cutoff"})):
        _, stage = build_stages(
            *settings, LOGAH.extractor.training, LOGAH.extractor.tuning, ancestry
        )
        assert new & to_json(stage.hypernet).keys() == expected
        assert from_json(Stage, to_json(stage), "stage") == stage
    assert LOGAH.presets["mini"].hypernet.embeddings == "inherited"
    assert LOGAH.presets["paper"].hypernet.embeddings == "predicted"
    assert TAL.presets["paper"].hypernet.scale == "std"


# Extraction.


def build_texts() -> tuple[Any, list[Any]]:
    """Build a tiny language model and two tasks of its words."""
    tasks = [make_tiny_task(name, classes=classes, image_size=0) for name, classes in TASKS.items()]
    return make_tiny_ancestry(spec=TINY), tasks


def build_extractor(**changes: Any) -> Any:
    """Build TAL's extractor for a few steps."""
    recipe = Recipe(epochs=1, images=32, batch_size=16, augment="none")
    return replace(TAL.presets["smoke"], hypernet=SMALL, training=recipe, tuning=recipe, **changes)


@pytest.mark.slow
def test_an_extraction_stores_the_embeddings_of_words_and_of_tasks() -> None:
    ancestry, tasks = build_texts()
    learngene = build_extractor()([ancestry], tasks, Run(device="cpu")).with_config(
        method="tal", ancestries=(ancestry.record,)
    )
    words = "transformer.wte.weight"
    assert torch.equal(learngene.state[f"ancestry.{words}"], ancestry.state[words])
    count = build_extractor().curriculum.embedding_images
    batches = sample_images(
        tasks[0], "train", ancestry.input_format, Run(), images=count, batch_size=16, seed=0
    )
    with torch.no_grad():
        features = [compute_pooled(ancestry.model(), batch.inputs) for batch in batches.epoch(0)]
    mean = torch.cat(features).mean(dim=0)
    assert torch.allclose(learngene.state["tasks.tiny-a"], mean, atol=1e-6)
    learngene = replace(learngene, files=ancestry.files)
    for width in (8, TINY.width):
        built = lifecycle.expand(learngene, layers=4, width=width, task=None)
        narrowed = Tables({words: ancestry.state[words], **_positions(ancestry)}).narrow(width)
        assert torch.allclose(built.state[words], narrowed[words])
        assert built.inherited >= {words, "transformer.wpe.weight", "transformer.h.3.ln_1.weight"}
    with pytest.raises(WrongCall, match="width 32"):
        lifecycle.expand(learngene, width=64)


def _positions(ancestry: Any) -> dict[str, torch.Tensor]:
    name = "transformer.wpe.weight"
    return {name: ancestry.state[name]}


def test_tasks_make_different_models_after_training() -> None:
    """Task layers start as the identity and are trained."""
    ancestry, tasks = build_texts()
    learngene = build_extractor()([ancestry], tasks, Run(device="cpu"))
    learngene = replace(
        learngene.with_config(method="tal", ancestries=(ancestry.record,)), files=ancestry.files
    )
    first, second = (
        TAL.expander(learngene, Target(layers=2, classes=3, task=name), Run()) for name in TASKS
    )
    name = "transformer.h.0.attn.c_attn.weight"
    assert not torch.equal(first.state[name], second.state[name])
    assert torch.equal(
        first.state["transformer.wte.weight"], second.state["transformer.wte.weight"]
    )


def test_the_ancestry_model_guides_students_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    from lgzoo_tal import meta_training

    ancestry, tasks = build_texts()
    monkeypatch.setattr(meta_training, "open_task", lambda name, offline: tasks[1])
    source = Curriculum(source="another", task_layer=True, embedding_images=16)
    learngene = build_extractor(curriculum=source)([ancestry], tasks[:1], Run(device="cpu"))
    assert learngene.config.metrics["stage_1"]["training_images"] == 32
    assert "tasks.tiny-b" in learngene.state


def test_guidance_by_positions_is_refused() -> None:
    extractor = replace(TAL.presets["smoke"], guide=Guidance(axis="positions"))
    with pytest.raises(WrongCall, match="axis is positions; of texts only the feature guides"):
        extractor.outline([TINY])


def test_a_source_of_images_is_refused_in_one_line() -> None:
    ancestry, tasks = build_texts()
    source = Curriculum(source="digits", task_layer=True)
    with pytest.raises(WrongCall, match="digits has images and tiny-a has texts") as refused:
        build_extractor(curriculum=source)([ancestry], tasks, Run(device="cpu"))
    assert "\n" not in str(refused.value)


def test_a_default_source_of_images_is_left_out_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lgzoo_tal import meta_training

    notes: list[str] = []
    monkeypatch.setattr(meta_training, "print_note", lambda text, key: notes.append(text))
    tasks = tuple(build_texts()[1])
    assert meta_training.split_tasks(Curriculum(source="forms"), TINY, tasks, Run()) == (
        None,
        tasks,
    )
    assert notes == [
        "there is no stage 1: forms is an image task, and the model takes texts; source takes "
        "a text task"
    ]
    meta_training.split_tasks(Curriculum(source=None), TINY, tasks, Run())
    assert len(notes) == 1


def test_a_step_trains_the_hypernetwork_through_a_model_of_texts() -> None:
    from learngene_zoo.families.text_format import Tokens

    hypernet = Hypernet(SMALL.build_spec().for_inputs(TINY), seed=1)
    state = initialise(TINY, seed=0)
    hypernet.tables = read_tables(store_embeddings(state, TINY), TINY, "it")
    meta = MetaObjective(hypernet, [TINY, TINY.with_(layers=2, width=16)], [TaskSpec(classes=3)], 0)
    words = torch.tensor([[5, 7, 9, 0], [3, 2, 8, 4]])
    batch = TaskBatch(
        Tokens(words, (words != 0).long()),
        *(torch.tensor([0, 2]), torch.arange(2), None, torch.zeros(2, dtype=torch.int64)),
    )
    losses = meta(batch)
    assert set(losses) == {"cross_entropy", "norm"}
    sum(losses.values(), torch.zeros(())).backward()
    for name in ("embed.weight", "decoder.l2.weight", "gnn.1.attn.to_qkv.weight"):
        gradient = hypernet.get_parameter(name).grad
        assert gradient is not None
        assert gradient.norm() > 0
