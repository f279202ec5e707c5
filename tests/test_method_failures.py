"""A method that fails, or returns tensors that cannot be used, is named, and nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from contract_toy import TOY, Keep, Take, with_changed_descendant, with_expander, with_extractor

import learngene_zoo as lg
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.cli.main import main
from learngene_zoo.cli.process.messages import describe_error
from learngene_zoo.errors import (
    BadFile,
    BadPlugin,
    MethodFailed,
    Refused,
    Unavailable,
    WrongCall,
)
from learngene_zoo.families.tensors import take_blocks
from learngene_zoo.method.contract import Method
from learngene_zoo.method.installed import METHODS, parse_details
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.cache import compute_once
from learngene_zoo.storage import WEIGHTS, Tensors
from learngene_zoo.testing import make_tiny_ancestry

NAMED = "the method 'toy' of the package lgzoo-toy"


def register(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a method of another package."""
    monkeypatch.setitem(METHODS.__dict__, "load", lambda name: method)
    monkeypatch.setitem(METHODS.__dict__, "references", lambda: {"toy": "lgzoo_toy:TOY"})
    monkeypatch.setitem(METHODS.__dict__, "package_of", lambda name: {"lgzoo-toy": "2.0"})


@pytest.fixture(scope="module")
def learngene() -> Learngene:
    return Keep()([make_tiny_ancestry()], [], lg.Run()).with_config(method="toy")


def change_weight(tensor: Any) -> Method:
    return with_changed_descendant(
        lambda made: replace(made, state={**made.state, "norm.weight": tensor})
    )


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (change_weight(torch.ones(31)), r"norm.weight has shape \(31,\); expected \(32,\)"),
        (change_weight(torch.full((32,), torch.nan)), "norm.weight with values that are not fin"),
        (change_weight(torch.full((32,), torch.inf)), "norm.weight with values that are not fin"),
        (change_weight(torch.ones(32).half() / 0), "norm.weight with values that are not finite"),
        (change_weight(torch.ones(32).int()), "norm.weight of type torch.int32; expected float"),
        (change_weight(torch.ones(32).numpy()), "norm.weight of type numpy.ndarray; expected a "),
        (
            with_changed_descendant(
                lambda made: replace(made, state={**made.state, "more": torch.ones(1)})
            ),
            "has the tensor more, which this model does not have",
        ),
        (
            with_changed_descendant(
                lambda made: replace(
                    made, state={n: t for n, t in made.state.items() if n != "head.bias"}
                )
            ),
            "lacks the tensor head.bias of shape",
        ),
        (
            with_changed_descendant(lambda made: replace(made, inherited=frozenset(["stem"]))),
            "records the tensor 'stem' as inherited",
        ),
    ],
)
def test_a_model_with_wrong_tensors_is_not_written(
    method: Method,
    says: str,
    learngene: Learngene,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(method, monkeypatch)
    with pytest.raises(BadPlugin, match=f"{NAMED} .*{says}"):
        lifecycle.expand(learngene, layers=2, classes=5, out=tmp_path / "model")
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadPlugin, match=f"{NAMED} .*{says}"):
        lg.expand(learngene, layers=2, classes=5)


def test_a_tensor_of_the_initialisation_that_does_not_fit_names_the_method(
    learngene: Learngene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for parts, says in (
        ({"norm.weight": torch.ones(31)}, r"norm.weight has shape \(31,\)"),
        ({"norm.more": torch.ones(32)}, "has no tensor norm.more"),
    ):
        method = with_expander(
            __call__=lambda self, gene, target, run, parts=parts: assemble(
                target.apply(gene.config.spec), parts, seed=0
            )
        )
        register(method, monkeypatch)
        with pytest.raises(BadPlugin, match=f"{NAMED} built a wrong tensor: .*{says}"):
            lg.expand(learngene, layers=2, classes=5)


def test_random_tensors_of_partly_inherited_blocks_are_named(
    learngene: Learngene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learngene.save(tmp_path / "gene")
    lacking = ["blocks.0.mlp.fc1.weight"]

    def leave_out(made: Descendant) -> Descendant:
        return replace(made, inherited=made.inherited - {*lacking})

    register(with_changed_descendant(leave_out), monkeypatch)
    words = ["expand", str(tmp_path / "gene"), "--layers", "2", "-o", str(tmp_path / "model")]
    result = CliRunner().invoke(main, words)
    assert (
        "note: blocks.0.mlp.fc1.weight of partly inherited layers is not inherited, as the method "
        "'toy' of" in result.stderr
    )
    lacking += ["blocks.1.mlp.fc2.weight", "blocks.1.norm1.bias"]  # a bias of zeros is not random
    result = CliRunner().invoke(main, [*words, "--force"])
    assert (
        "fc1.weight and 1 more tensor of partly inherited layers are not inherited" in result.stderr
    )
    lacking[:] = ["pos_embed"]
    result = CliRunner().invoke(main, [*words, "--force"])
    assert "note: pos_embed of partly inherited layers is not inherited" in result.stderr
    lacking[:] = [name for name in learngene.state if name.startswith("blocks.0.")]
    assert "partly inherited" not in CliRunner().invoke(main, [*words, "--force"]).stderr


def test_a_norm_that_a_method_does_not_take_from_the_learngene_is_named(
    learngene: Learngene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, scale = "blocks.0.norm1.weight", torch.ones(32)
    register(
        with_changed_descendant(
            lambda made: replace(
                made, state={**made.state, name: scale}, inherited=made.inherited - {name}
            )
        ),
        monkeypatch,
    )
    words = ["expand", str(tmp_path / "gene"), "--layers", "2", "-o", str(tmp_path / "model")]
    for stored, is_named in ((scale, False), (2 * scale, True)):
        gene = replace(learngene, state={**learngene.state, name: stored})
        gene.save(tmp_path / "gene", force=True)
        result = CliRunner().invoke(main, [*words, "--force"])
        assert (f"note: {name} of partly inherited layers is not" in result.stderr) == is_named
    # A method that merges the norm into the layer after it stores none
    merged = {key: tensor for key, tensor in learngene.state.items() if key != name}
    replace(learngene, state=merged).save(tmp_path / "gene", force=True)
    assert "partly inherited" not in CliRunner().invoke(main, [*words, "--force"]).stderr


def test_descendants_have_the_normalisation_of_the_ancestry_model(
    learngene: Learngene, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(TOY, monkeypatch)
    record = replace(make_tiny_ancestry().record, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    built = lg.expand(learngene.with_config(ancestries=(record,)), layers=2, classes=5)
    assert (built.mean, built.std) == (record.mean, record.std)
    assert Take()(learngene, Target(layers=2), lg.Run()).mean == (0.5,) * 3


def test_a_model_to_which_a_method_gives_nothing_is_named(
    learngene: Learngene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learngene.save(tmp_path / "gene")
    register(
        with_changed_descendant(lambda made: replace(made, inherited=frozenset())), monkeypatch
    )
    words = ["expand", str(tmp_path / "gene"), "--layers", "2", "-o", str(tmp_path / "model")]
    result = CliRunner().invoke(main, words)
    assert f"note: all weights of this model are random, as {NAMED} gave none" in result.stderr


def test_a_wrong_call_in_the_code_of_another_package_names_it(
    learngene: Learngene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_missing(self: Any, gene: Learngene, target: Target, run: lg.Run) -> Descendant:
        return assemble(gene.config.spec, take_blocks(gene.state, gene.config.spec, [99]), seed=0)

    register(with_expander(__call__=take_missing), monkeypatch)
    with pytest.raises(WrongCall, match=rf"there is no block 99; .* \(raised by {NAMED}\)"):
        lg.expand(learngene, layers=2, classes=5)


def test_an_extraction_is_not_resumed_after_the_code_of_its_package_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(TOY, monkeypatch)
    monkeypatch.setitem(METHODS.__dict__, "describe_code", lambda name: "lgzoo-toy 2.0 (abc)")
    words = {"ancestries": "ancestry-mini", "out": tmp_path / "gene", "run": lg.Run(resume=True)}
    lg.extract("toy", **words)
    again = lg.extract("toy", **words)
    assert again.config.method == "toy"
    monkeypatch.setitem(METHODS.__dict__, "describe_code", lambda name: "lgzoo-toy 2.0 (def)")
    with pytest.raises(Refused, match=r"made with other settings \(.*code"):
        lg.extract("toy", **words)


COUNTS: list[int] = []


def count_calls(settings: None, run: lg.Run) -> Any:
    COUNTS.append(len(COUNTS))
    return {}, None


def count(extractor: Any, ancestries: Any, tasks: Any, run: lg.Run) -> Any:
    compute_once(run.part("outer").part("inner"), "toy.count", count_calls)
    return Keep.__call__(extractor, ancestries, tasks, run)


@pytest.mark.slow
def test_parts_of_an_extraction_are_computed_again_after_the_code_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those kept in the folder of the run, and those that a bench shares."""
    COUNTS.clear()
    register(with_extractor(__call__=count), monkeypatch)
    for i, (code, calls) in enumerate([("(a)", 1), ("(a)", 1), ("(b)", 2), ("(b)", 2)]):
        monkeypatch.setitem(METHODS.__dict__, "describe_code", lambda name, code=code: code)
        for name, shared in (("alone", None), ("shared", tmp_path / "parts")):
            lg.extract(
                "toy",
                ancestries="ancestry-mini",
                image_size=16 + 16 * i,  # on which this part does not depend
                out=tmp_path / name,
                run=lg.Run(shared=shared),
                force=True,
            )
        assert len(COUNTS) == 2 * calls


def test_parts_of_an_expansion_depend_on_the_code(
    learngene: Learngene, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[str] = []

    def take(expander: Any, gene: Learngene, target: Target, run: lg.Run) -> Descendant:
        codes.append(run.code)
        return Take.__call__(expander, gene, target, run)

    register(with_expander(__call__=take), monkeypatch)
    monkeypatch.setitem(METHODS.__dict__, "describe_code", lambda name: "lgzoo-toy 2.0 (abc)")
    lg.expand(learngene, layers=2, classes=5)
    assert codes == ["lgzoo-toy 2.0 (abc)"]


def test_large_and_half_numbers_are_accepted(
    learngene: Learngene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tensor in (torch.full((32,), 3e38), torch.full((32,), 6e4).half()):
        register(change_weight(tensor), monkeypatch)
        built = lg.expand(learngene, layers=2, classes=5)
        assert torch.equal(built.state["norm.weight"], tensor)


def extract_state(state: Any) -> Method:
    """Return the toy method whose extractor returns this state."""
    return with_extractor(
        __call__=lambda self, ancestries, tasks, run: replace(
            Keep()(ancestries, tasks, run), state=state
        )
    )


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"x": torch.tensor([1.0, torch.nan])}, "tensor x with values that are not finite"),
        ({"x": torch.tensor([1.0], dtype=torch.bfloat16) / 0}, "tensor x with values that are"),
        ({"x": torch.ones(2).numpy()}, "tensor x of type numpy.ndarray; expected a torch.Tensor"),
        ({"x": torch.ones(2).long()}, "tensor x of type torch.int64; expected floating-point"),
        ({3: torch.ones(2)}, "tensor 3 by this name; expected a string of at most 500"),
        ({"x" * 501: torch.ones(2)}, "by this name; expected a string of at most 500"),
    ],
)
def test_a_learngene_with_wrong_tensors_is_not_written(
    state: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(extract_state(state), monkeypatch)
    with pytest.raises(BadPlugin, match=f"{NAMED} returned the .*{says}"):
        lifecycle.extract("toy", out=tmp_path / "learngene")
    assert not (tmp_path / "learngene").exists()


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"accuracy": 93.1}, "returned metrics: accuracy is 93.1; expected a number from 0 to 1"),
        ({"images": 9.5}, "returned metrics: images is 9.5; expected a whole number"),
        ({"loss": [0.5, float("nan")]}, r"returned the metrics field loss\[1\] of nan; expected"),
        ({"loss": np.float32(1)}, "returned the metrics field loss of type numpy.float32; exp"),
    ],
)
def test_a_learngene_with_wrong_metrics_is_not_written(
    metrics: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(self: Any, ancestries: Any, tasks: Any, run: Any) -> Learngene:
        return Keep()(ancestries, tasks, run).with_config(metrics=metrics)

    register(with_extractor(__call__=measure), monkeypatch)
    with pytest.raises(BadPlugin, match=f"{NAMED} {says}"):
        lifecycle.extract("toy", out=tmp_path / "learngene")
    assert not (tmp_path / "learngene").exists()


def test_tensors_in_a_file_are_not_read_to_be_checked(
    learngene: Learngene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Tensors(learngene.save(tmp_path / "learngene") / WEIGHTS)
    register(extract_state(state), monkeypatch)
    read: list[Path] = []
    get = Tensors.__getitem__
    monkeypatch.setattr(
        Tensors, "__getitem__", lambda self, name: (read.append(self.path), get(self, name))[1]
    )
    assert lifecycle.extract("toy").state is state
    assert state.path not in read


def fail(*_: Any) -> Any:
    raise KeyError("blocks.0")


@pytest.mark.parametrize(
    "method",
    [with_expander(__call__=fail), with_expander(check_target=fail)],
    ids=["call", "check_target"],
)
def test_an_error_in_an_expander_names_its_method_and_package(
    method: Method, learngene: Learngene, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(method, monkeypatch)
    with pytest.raises(MethodFailed) as caught:
        lg.expand(learngene, layers=2)
    assert describe_error(caught.value) == (
        f"{NAMED} failed: KeyError: 'blocks.0'; run again with --debug to see the traceback",
        1,
    )
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("part", ["__call__", "outline"])
def test_an_error_in_an_extractor_names_its_method_and_package(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(with_extractor(**{part: fail}), monkeypatch)
    with pytest.raises(MethodFailed, match=f"{NAMED} failed: KeyError: 'blocks.0'"):
        lg.extract("toy")


def test_an_error_in_the_choice_of_tasks_names_its_method_and_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(with_extractor(needs_tasks=fail), monkeypatch)
    with pytest.raises(MethodFailed, match=f"{NAMED} failed: KeyError: 'blocks.0'"):
        lg.extract("toy")


def register_raising(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a method whose expander raises an error."""

    def give_up(*_: Any) -> Any:
        raise error

    register(with_expander(__call__=give_up), monkeypatch)


@pytest.mark.parametrize(
    "error", [FileNotFoundError(2, "No such file or directory", "map.csv"), ConnectionError("no")]
)
def test_an_error_of_the_system_that_is_no_shortage_names_the_method(
    error: OSError, learngene: Learngene, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_raising(error, monkeypatch)
    with pytest.raises(MethodFailed, match=f"{NAMED} failed: {type(error).__name__}: "):
        lg.expand(learngene, layers=2)


def test_an_error_in_a_family_names_its_method_and_package(
    learngene: Learngene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(with_expander(family=fail), monkeypatch)
    with pytest.raises(MethodFailed, match=f"{NAMED} failed: KeyError"):
        lifecycle.plan(learngene.save(tmp_path / "learngene"))


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("a package is missing"),
        MemoryError(),
        OSError(28, "No space left on device"),
        RuntimeError("Too many open files. Communication with the workers is not possible"),
    ],
)
def test_errors_that_are_not_of_its_code_are_raised_as_they_are(
    error: Exception, learngene: Learngene, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_raising(error, monkeypatch)
    with pytest.raises(type(error)) as caught:
        lg.expand(learngene, layers=2)
    assert caught.value is error


# Details that another version of the plugin wrote.


@dataclass(frozen=True, kw_only=True)
class Details:
    mode: str


@dataclass(frozen=True, kw_only=True)
class Optional:
    rank: int | None = 4
    share: float | None
    note: str | None = None


def test_none_in_details_is_read_back_as_none(learngene: Learngene, tmp_path: Path) -> None:
    details = Optional(rank=None, share=None)
    config = learngene.config.with_details(details)
    assert config.details == {"rank": None, "share": None}
    learngene.with_config(details=config.details).save(tmp_path / "learngene")
    assert parse_details(load_learngene(tmp_path / "learngene").config, Optional) == details


@pytest.mark.parametrize("versions", [{"torch": "2.0", "lgzoo-toy": "1.0"}, {"torch": "2.0"}])
def test_details_of_another_version_are_refused_with_file_and_versions(
    versions: dict[str, str],
    learngene: Learngene,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Reading(Take):
        def __call__(self, learngene: Any, target: Any, run: Any) -> Any:
            parse_details(learngene.config, Details)
            raise AssertionError

    register(replace(TOY, details=Details, expander=Reading()), monkeypatch)
    folder = learngene.with_config(versions=versions).save(tmp_path / "learngene")
    wrote = "; written by lgzoo-toy 1.0" if "lgzoo-toy" in versions else ""
    fault = f"details of the toy learngene: the key 'mode' is missing{wrote}; installed is"
    with pytest.raises(BadFile) as caught:
        lifecycle.expand(folder, layers=2)
    assert str(caught.value) == f"{folder / 'config.json'}: {fault} lgzoo-toy 2.0"
    with pytest.raises(BadFile) as caught:
        lg.expand(load_learngene(folder), layers=2, expander=Reading())
    assert str(caught.value) == f"{fault} lgzoo-toy 2.0"
