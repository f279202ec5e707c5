"""Time a step of meta-training at TAL's size against its unavoidable parts.

The parts are the teacher's forward pass, and forward and backward of the target with given tensors.
CPU seconds of the process, so that other programs disturb them less (with `--device cuda` wall
seconds of a GPU); medians over all rounds, in which the measured parts take turns. A step is: four
images of 224 pixels, a target of 6 layers and width 192 with 1000 classes, TAL's hypernetwork
(LoGAH's small one); prediction, forward, backward, clipping, AdamW. Stage 1 has a ViT-B/16 as its
teacher, with the guidance of the released code; in the second row M is predicted, as in the paper,
which is our default. Stage 2 has the task layer and no teacher.

It is also compared with the same step like in the released code: everything decoded and then
cropped, the edge bias of every pair of nodes, the target run twice if there is a teacher. Loss and
gradients are equal (checked). The released code's seconds were measured before, on another machine,
also with one thread. One thread, about five minutes, 5 GB of memory. Exits with 1 if a step on a
processor is slower than its target.
"""

from __future__ import annotations

import resource
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.vit.names import ARCHITECTURES
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.settings import Recipe
from learngene_zoo.training.distillation import compute_divergence
from learngene_zoo.training.loop import make_parameter_groups
from lgzoo_tal.config import Guidance
from lgzoo_tal.logah import SMALL
from lgzoo_tal.modules.graph import SINK, build_graph
from lgzoo_tal.modules.hypernet import Hypernet
from lgzoo_tal.modules.mixture import TaskBatch
from lgzoo_tal.modules.objective import (
    Guide,
    MetaObjective,
    TaskSpec,
    compute_tokens,
    draw_random_matrix,
    sum_norms,
)
from timings.case import Case, Row, measure_medians, run_part, synchronise_and_read_clock
from timings.tal_predict import PlainHypernet

TARGET = ViTSpec(layers=6, width=192, heads=3)
TEACHER, HYPERNET = ARCHITECTURES["vit_base_patch16_224"], SMALL.build_spec()
IMAGES, SEED, LR, CLIP = 4, 0, 3e-4, 5.0
SMOOTHING, NORM_WEIGHT = 0.1, 3e-5
AS_RELEASED = Guidance(
    direction="teacher-student", temperature=3.0, reduction="classes", projection="random"
)
ROWS: dict[str, Guidance | None] = {
    "stage 1": AS_RELEASED,
    "stage 1, M predicted": Guidance(),
    "stage 2": None,
}
RELEASED = {"stage 1": 7.99, "stage 2": 6.74}
TARGET_TIMES = {"stage 1": 2.5, "stage 2": 4.0}  # times faster than the released code

HEADER = (
    "                        ours    limit = teacher + target    plain  released*   x plain   x"
    " released* (target)   GB   (* another machine)"
)

Parameters = Mapping[str, Tensor]


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this case."""
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Measure each row in a separate process."""
    options, header = ["--device", args.device, "--rounds", str(args.rounds)], f"{HEADER}\n"
    for name in ROWS:
        row = run_part("tal_step", [name], options)
        row |= {"released_elsewhere_s": RELEASED.get(name), "wanted_times": TARGET_TIMES.get(name)}
        yield row, f"{header}{describe(row)}"
        header = ""


def count_times(row: Row) -> float:
    """Return how many times faster than the released code a step is."""
    return float(row["released_elsewhere_s"] / row["ours_s"])


def describe(row: Row) -> str:
    """Return the line that is printed for a row."""
    released = ""
    if row["released_elsewhere_s"]:
        times = f"{count_times(row):21.1f} ({row['wanted_times']})"
        released = f"{row['released_elsewhere_s']:9.2f} {times}"
    return (
        f"{row['name']:20} {row['ours_s']:7.3f} {row['limit_s']:8.3f} = {row['teacher_s']:6.3f} +"
        f" {row['target_s']:6.3f} {row['plain_s']:9.3f} {row['plain_s'] / row['ours_s']:19.1f}"
        f" {released:38} {row['peak_bytes'] / 2**30:5.2f}"
    )


def measure_row(args: Namespace) -> Row:
    """Return the seconds of a step, of its parts and of the plain one, and the most bytes that the
    process held before the plain one.
    """
    (name,), device = args.part, args.device
    torch.set_num_threads(1)
    guidance, batch = ROWS[name], make_random_batch(device)
    guide = (
        Guide(build_model(TEACHER, initialise(TEACHER, SEED)).to(device), guidance)
        if guidance
        else None
    )
    embedding = torch.randn(TEACHER.width, generator=torch.Generator().manual_seed(SEED))
    task_spec = TaskSpec(classes=TARGET.classes, embedding=None if guide else embedding.to(device))
    spec = HYPERNET.with_(task=None if guide else TEACHER.width)
    hypernet, rules = (
        Hypernet(spec, SEED).to(device),
        {"label_smoothing": SMOOTHING, "norm_weight": NORM_WEIGHT},
    )
    objective = MetaObjective(hypernet, [TARGET], [task_spec], SEED, guide=guide, **rules).train()
    ours = Step(objective.hypernet, lambda: torch.stack(list(objective(batch).values())).sum())
    ours()
    ours()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    other = Hypernet(spec, SEED).to(device)
    other.load_state_dict(objective.hypernet.state_dict())
    plain = Step(other, lambda: compute_plain_loss(other, batch, task_spec, guide))
    check_equal(ours, plain)
    tensors = {
        key: tensor.detach().to(device).requires_grad_()
        for key, tensor in initialise(TARGET, SEED).items()
    }
    parts: dict[str, Callable[[], object]] = {
        "ours_s": ours,
        "teacher_s": (lambda: guide.compute_tokens(batch.inputs)) if guide else lambda: None,
        "target_s": lambda: compute_classification_loss(tensors, batch).backward(),
        "plain_s": plain,
    }
    clock = time.process_time if device == "cpu" else synchronise_and_read_clock
    seconds = measure_medians(parts, repeats=1, rounds=args.rounds, clock=clock)
    return {
        "name": name,
        **seconds,
        "limit_s": seconds["teacher_s"] + seconds["target_s"],
        "peak_bytes": peak,
    }


class Step:
    """A step of meta-training, from a function that computes the loss."""

    def __init__(self, hypernet: Hypernet, loss: Callable[[], Tensor]) -> None:
        self.hypernet, self.loss = hypernet, loss
        self.optimizer = torch.optim.AdamW(
            make_parameter_groups(hypernet, Recipe(weight_decay=0.01)), lr=LR, fused=True
        )

    def backward(self) -> float:
        """Compute the gradients and return the loss."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss.item()

    def __call__(self) -> None:
        """Run the step."""
        self.backward()
        torch.nn.utils.clip_grad_norm_(self.hypernet.parameters(), CLIP)
        self.optimizer.step()


def compute_plain_loss(
    hypernet: Hypernet, batch: TaskBatch, task_spec: TaskSpec, guide: Guide | None
) -> Tensor:
    """Return the loss by its formula, from tensors that are decoded in full."""
    predicted = guide is not None and guide.settings.projection == "predicted"
    graph = build_graph(TARGET, sink=(TEACHER.width, TARGET.width) if predicted else None)
    parameters = PlainHypernet(hypernet)(graph, task=task_spec.embedding)
    cross_entropy = compute_classification_loss(parameters, batch)
    norm = NORM_WEIGHT * sum_norms(parameters)
    if guide is None:
        return cross_entropy + norm
    settings = guide.settings
    with torch.no_grad():
        target = guide.model.forward_features(batch.inputs)[:, 0]
    # A second pass, as in the released code.
    feature = compute_tokens(TARGET, parameters, batch.inputs)[:, 0]
    matrix = (
        [parameters[name] for name in SINK]
        if predicted
        else [
            tensor.to(feature)
            for tensor in draw_random_matrix(TEACHER.width, TARGET.width, SEED, 0)
        ]
    )
    projected = functional.linear(feature, *matrix)
    distance = compute_divergence(projected, target, settings.temperature, settings.direction)
    if settings.reduction == "classes":
        distance = distance / task_spec.classes
    return (1 - settings.alpha) * cross_entropy + settings.alpha * distance + norm


def compute_classification_loss(parameters: Parameters, batch: TaskBatch) -> Tensor:
    """Return the cross-entropy of the target with given tensors."""
    feature = compute_tokens(TARGET, parameters, batch.inputs)[:, 0]
    logits = functional.linear(feature, parameters["head.weight"], parameters["head.bias"])
    return functional.cross_entropy(logits, batch.labels, label_smoothing=SMOOTHING)


def check_equal(ours: Step, plain: Step) -> None:
    """Exit unless loss and gradients are equal, but for rounding."""
    first, second = ours.backward(), plain.backward()
    if abs(first - second) > 1e-5 * abs(second):
        sys.exit(f"the losses differ: {first} and {second}")
    for (name, parameter), reference in zip(
        ours.hypernet.named_parameters(), plain.hypernet.parameters()
    ):
        assert parameter.grad is not None, name
        assert reference.grad is not None, name
        difference, size = (
            (parameter.grad - reference.grad).abs().max().item(),
            reference.grad.abs().max().item(),
        )
        if difference > 1e-4 * size + 1e-7:
            sys.exit(f"the gradients of {name} are {difference} apart, of {size}")


def make_random_batch(device: str) -> TaskBatch:
    """Return random images."""
    images = torch.randn(IMAGES, 3, 224, 224, generator=torch.Generator().manual_seed(SEED))
    numbers = torch.arange(IMAGES)
    batch = TaskBatch(images, numbers, numbers, None, torch.zeros_like(numbers))
    return TaskBatch(*(None if part is None else part.to(device) for part in batch))  # type: ignore[arg-type]


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if a step on a processor is slower than its target."""
    late = [
        row["name"]
        for row in numbers["rows"]
        if row["name"] in TARGET_TIMES and count_times(row) < TARGET_TIMES[row["name"]]
    ]
    return f"slower than the target: {', '.join(late)}" if late and args.device == "cpu" else ""


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: {"rows": rows, "threads": 1},
    add_options=add_options,
    measure_part=measure_row,
    find_problem=find_problem,
    name_suffix=lambda args: "" if args.device == "cpu" else f"_{args.device}",
)
