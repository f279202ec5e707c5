"""How good predicted models are before any training, on validation images: one of each depth from shallow to deep."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from learngene_zoo.plugin import InputFormat, Run, Task, ViTSpec, evaluate, model_of, open_device
from lgzoo_tal.graph import graph_of
from lgzoo_tal.hypernet import Hypernet
from lgzoo_tal.meta import Lesson


def untrained(
    hypernet: Hypernet,
    zoo: Sequence[ViTSpec],
    task: Task,
    lesson: Lesson,
    input_format: InputFormat,
    run: Run,
    images: int | None,
) -> dict[str, float]:
    """Accuracy by "layers x width" of the sizes that `chosen` takes."""
    found = {}
    for spec in chosen(zoo):
        model = model_of(spec.with_(classes=task.classes), predicted(hypernet, spec, lesson, run))
        value = evaluate(model, task, "validation", input_format, run, images=images).value
        found[f"{spec.layers}x{spec.width}"] = round(value, 4)
    return found


def chosen(zoo: Sequence[ViTSpec]) -> list[ViTSpec]:
    """Of the shallowest, a middle and the deepest depth that were trained on the widest model."""
    depths = sorted({spec.layers for spec in zoo})
    wanted = sorted({depths[0], depths[len(depths) // 2], depths[-1]})
    return [max((spec for spec in zoo if spec.layers == layers), key=lambda spec: spec.width) for layers in wanted]


def predicted(
    hypernet: Hypernet, spec: ViTSpec, lesson: Lesson, run: Run, *, head: bool = True
) -> dict[str, torch.Tensor]:
    """The tensors of one model for a task, on the CPU; without the head's if `head` is not set."""
    device = open_device(run)
    hypernet.to(device).eval()
    task = None if lesson.embedding is None else lesson.embedding.to(device)
    made = hypernet.predict(graph_of(spec.with_(classes=lesson.classes)), task=task, head=head)
    return {name: tensor.cpu() for name, tensor in made.items()}
