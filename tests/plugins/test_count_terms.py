"""Objectives of methods that contain one of a task count the terms of its losses.

Otherwise `--accumulate` and torchrun weight the parts of a batch by their images.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from learngene_zoo.training.objectives import count_terms
from lgzoo_baselines.modules import auto_lg, ligo, nested
from lgzoo_lsamd.modules import supernet
from lgzoo_pool.modules import objectives

PLUGINS = Path(__file__).parents[2] / "plugins"
TERMS = {"class": torch.tensor(3)}
# Each class with the attribute that holds the objective of a task.
HOLDERS: tuple[tuple[Any, str], ...] = (
    (auto_lg.MetaMatching, "objective"),
    (ligo.OperatorObjective, "objective"),
    (supernet.SearchObjective, "task_objective"),
    (nested.SampledSlices, "objectives"),
    (objectives.SampledPaths, "objectives"),
)


class Counted(nn.Module):
    """A task's objective whose loss is a mean over three terms."""

    def count_terms(self, batch: object) -> dict[str, torch.Tensor]:
        return TERMS if batch == "a batch" else {}


@pytest.mark.parametrize(("kind", "attribute"), HOLDERS)
def test_the_terms_are_those_of_the_task(kind: Any, attribute: str) -> None:
    objective = kind.__new__(kind)
    nn.Module.__init__(objective)
    held = Counted()
    setattr(objective, attribute, nn.ModuleDict({"4": held}) if attribute[-1] == "s" else held)
    assert count_terms(objective, "a batch") == TERMS


def test_no_objective_of_a_plugin_forgets_them() -> None:
    known = {kind.__name__ for kind, _ in HOLDERS}
    found = {
        node.name
        for path in sorted(PLUGINS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and asks_an_objective(node)
    }
    assert known <= found
    assert found - known == set(), "add count_terms, and the class to HOLDERS"


def asks_an_objective(node: ast.ClassDef) -> bool:
    """Return whether `forward` of a class calls an attribute whose name ends in objective(s)."""
    return any(
        isinstance(call.func, ast.Attribute | ast.Subscript)
        and "objective" in ast.unparse(call.func).partition("(")[0].partition("[")[0]
        and ast.unparse(call.func).startswith("self.")
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "forward"
        for call in ast.walk(method)
        if isinstance(call, ast.Call)
    )
