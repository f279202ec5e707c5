"""The training loop, a generator of steps: `train`, with parameter groups and stochastic depth.

Evaluation, annealing and early stopping are written in the body of the `for` over its steps.
`Engine` does the work of a training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from learngene_zoo.errors import TrainingFailed, WrongCall
from learngene_zoo.runs.progress import (
    Log,
    check_tracker,
    open_metrics_file,
    open_tracker,
    print_epochs,
    report_activity,
    say,
    show_progress_bar,
)
from learngene_zoo.runs.run import (
    Run,
    average_losses,
    check_agreed,
    get_world_size,
    is_first,
    open_accelerator,
    open_device,
    rank,
    share_of_batch,
    sum_counts,
    wait_for_all,
)
from learngene_zoo.seeds import seed_step
from learngene_zoo.settings import Recipe, fingerprint, to_json
from learngene_zoo.text import name_option
from learngene_zoo.training import checkpoint as checkpoints
from learngene_zoo.training.checkpoint import TrainingState, defer_interrupts, suggest_lower_rate
from learngene_zoo.training.objectives import count_terms, make_mixup

if TYPE_CHECKING:
    from accelerate import Accelerator

    from learngene_zoo.tasks.loader import Batches

DROP_PATH_NAMES = ("drop_path1", "drop_path2")
# The pause between checkpoints is at least this many times the time that writing one takes.
MIN_PAUSE_FACTOR = 20


@dataclass(frozen=True, kw_only=True)
class Step:
    """A completed step of training."""

    epoch: int  # from 0
    step: int  # from 1, over all epochs
    steps: int  # the number of steps of the training
    losses: Mapping[str, float]  # by name, means over the batch of all processes
    lr: float
    end_of_epoch: bool
    # The moving average of the objective, if the recipe has one
    average: nn.Module | None = field(default=None, compare=False)
    # Logs further values of this step
    report: Callable[[Mapping[str, float]], None] = field(
        default=lambda values: None, compare=False
    )

    @property
    def loss(self) -> float:
        """The sum of the losses, which is minimised."""
        return sum(self.losses.values())

    def line(self, images: int) -> dict[str, float]:
        """Return the values to log for this step; `images` is the number of images in it."""
        losses = {f"loss/{name}": value for name, value in self.losses.items()}
        return {"epoch": self.epoch, "images": images, "lr": self.lr, "loss": self.loss, **losses}


# From an objective to AdamW's parameter groups; a group may have an `lr_scale`.
Groups = Callable[[nn.Module, Recipe], list[dict[str, Any]]]
NO_WEIGHT_DECAY = frozenset({"pos_embed", "cls_token", "dist_token", "reg_token", "freqs"})


def compute_learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step, a function of its number alone.

    It rises linearly over the first W = warmup * steps_per_epoch steps and reaches `lr` at step W.
    The n-th (from 0) of the N other steps is at t = n/N: `cosine` gives min_lr + (lr - min_lr) (1 +
    cos(pi t)) / 2, `poly` min_lr + (lr - min_lr) (1 - t)^power, `constant` lr.

    Args:
        recipe: the settings of the schedule.
        step: number of the step, from 1.
        steps_per_epoch: the number of steps per epoch.
    """
    progress = step - 1
    warm = round(recipe.warmup * steps_per_epoch)
    if progress < warm:
        return recipe.lr * step / warm
    if recipe.schedule == "constant":
        return recipe.lr
    t = min((progress - warm) / max(recipe.epochs * steps_per_epoch - warm, 1), 1.0)
    share = (
        (1 + math.cos(math.pi * t)) / 2 if recipe.schedule == "cosine" else (1 - t) ** recipe.power
    )
    return recipe.min_lr + (recipe.lr - recipe.min_lr) * share


def make_parameter_groups(module: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Return AdamW's groups of all trainable parameters.

    Matrices are decayed; biases, norms, tokens and positions are not. With `recipe.layer_decay`
    each block has a separate learning rate (`find_layer_scales`). The learning rate of a group with
    an `lr_scale` is that of the schedule multiplied by it.

    Raises:
        WrongCall: if nothing is trainable.
    """
    scales = {} if recipe.layer_decay == 1 else find_layer_scales(module, recipe.layer_decay)
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            is_decayed = parameter.dim() >= 2 and name.rpartition(".")[2] not in NO_WEIGHT_DECAY
            groups.setdefault((is_decayed, scales.get(name, 1.0)), []).append(parameter)
    if not groups:
        raise WrongCall(
            "this objective has no trainable parameter; unfreeze some, or train for 0 epochs"
        )
    return [
        {
            "params": groups[is_decayed, scale],
            "weight_decay": recipe.weight_decay if is_decayed else 0.0,
            **({} if scale == 1 else {"lr_scale": scale}),
        }
        for is_decayed, scale in sorted(groups, reverse=True)
    ]


def find_layer_scales(module: nn.Module, decay: float) -> dict[str, float]:
    """Return the learning rate factor of every parameter of the timm models in `module`, by name.

    It is 1 for the head, `decay` for the last block (and the final norm), its square for the block
    before, and so on; the stem has the smallest (Bao et al. 2022, BEiT). Parameters outside of
    these models are not included.
    """
    from timm.models import group_parameters

    scales: dict[str, float] = {}
    for prefix, model in module.named_modules():
        if not callable(getattr(model, "group_matcher", None)):
            continue
        layers = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
        last = max(layers.values(), default=0)  # empty for a model without parameters
        start = f"{prefix}." if prefix else ""
        scales |= {f"{start}{name}": decay ** (last - layer) for name, layer in layers.items()}
    return scales


def train(
    objective: nn.Module,
    loader: Batches,
    recipe: Recipe,
    run: Run,
    *,
    groups: Groups = make_parameter_groups,
    unused: bool = False,
    seconds_between_checkpoints: float = 30.0,
    label: str = "training",
    lines: bool = True,
) -> Iterator[Step]:
    """Minimise the losses of an objective over the epochs of a loader, and yield each step.

    The objective moves to the run's device. After the last step it has the trained weights (with
    `recipe.ema` their moving average, whose decay warms up as min(ema, 1 - step^(-2/3))) and is in
    eval mode.

    With `run.resume` training continues from the newest checkpoint in `run.folder`; of a completed
    training the weights are loaded and no step is yielded. On one CPU process the result is
    bit-equal to that of an uninterrupted training, provided that everything that the body of the
    `for` sets on the objective is in its buffers. Ctrl-C ends the training after the current step,
    once that is saved; a second one ends it immediately. Under torchrun the processes share each
    batch and always have equal weights; the first one writes.

    Args:
        objective: maps a batch to named scalar losses, each a mean over the batch. If a loss is a
            mean over something else than images, it has a method `count_terms`
            (`objectives.count_terms`).
        loader: batches of training images.
        recipe: settings of the training.
        run: folder, seed, device and so on.
        groups: returns AdamW's parameter groups.
        unused: allow parameters that some steps do not use.
        seconds_between_checkpoints: 0 saves every step. Otherwise large checkpoints are written
            less often, see `MIN_PAUSE_FACTOR`.
        label: name of the training in progress lines, logs and checkpoints.
        lines: print a line per epoch, if `run.lines` is set and there is no progress bar.

    Raises:
        WrongCall, Unavailable, Refused: before the first step.
        TrainingFailed: for a loss that is not finite; the last checkpoint stays.
    """
    device = open_device(run)
    if recipe.epochs == 0:
        objective.to(device).eval()
        return
    if loader.steps == 0:
        raise WrongCall(
            f"{loader.images} training images do not fill one batch of {recipe.batch_size}; set a"
            f" smaller {name_option('batch_size')}"
        )
    engine = Engine(objective, loader, recipe, run, device, groups, unused, label)
    with use_stochastic_depth(objective, recipe.drop_path), ExitStack() as stack:
        steps_done = engine.begin()
        if steps_done:
            say(run, f"{label} resumes after step {steps_done} of {engine.steps}")
        is_interrupted = stack.enter_context(
            defer_interrupts(run.folder is not None and get_world_size() == 1, run.lines)
        )
        watched = (
            show_progress_bar
            if run.progress or not lines
            else partial(print_epochs, epochs=recipe.epochs)
        )
        bar = watched(run, label, steps_done, engine.steps)
        outlets = (
            open_metrics_file(run.folder, steps_done),
            open_tracker(engine.accelerator, run, label),
            bar,
        )
        logs = [stack.enter_context(outlet) for outlet in outlets]
        saved, pause = time.monotonic(), seconds_between_checkpoints
        title = f"{run.name}: {label}" if run.name else label
        activity = stack.enter_context(report_activity(title, engine.steps, has_bar=run.progress))
        for step in engine.take_remaining(steps_done):
            activity.num_done, activity.note = step.step, f"loss {step.loss:.4f}"
            for log in logs:
                log(step.line(engine.shown), step.step)
            yield replace(step, report=partial(_report, logs[:-1], step))
            if step.step == step.steps or is_interrupted() or time.monotonic() - saved >= pause:
                seconds = engine.save(step.step)
                saved = time.monotonic()
                if pause:
                    pause = max(seconds_between_checkpoints, MIN_PAUSE_FACTOR * seconds)
            if is_interrupted():
                raise KeyboardInterrupt
    engine.finish()


def _report(logs: Sequence[Log], step: Step, values: Mapping[str, float]) -> None:
    for log in logs:
        log({"epoch": step.epoch, **values}, step.step)


class Engine:
    """A training in progress."""

    def __init__(
        self,
        objective: nn.Module,
        loader: Batches,
        recipe: Recipe,
        run: Run,
        device: torch.device,
        groups: Groups,
        unused: bool,
        label: str,
    ) -> None:
        self.objective = objective.to(device)
        self.loader, self.recipe, self.run, self.device = loader, recipe, run, device
        self.groups = groups
        self.steps = recipe.epochs * loader.steps
        # Images of the last step, over all processes, from which the cost of an extraction is
        # computed
        self.shown = 0
        self.identity = {
            "label": label,
            "steps": self.steps,
            "seed": run.seed,
            "ema": recipe.ema,
            "recipe": fingerprint(to_json(recipe)),
            "images": loader.images,
            "plan": run.plan,
        }
        # Batches of a language model have no task
        is_mixed = recipe.mixup or recipe.cutmix
        self.mix = make_mixup(recipe, loader.task.classes) if is_mixed else None
        check_tracker(run.tracker, run.folder)
        self.accelerator: Accelerator = open_accelerator(run, device, unused)

    def begin(self) -> int:
        """Build the optimizer, load the newest checkpoint, and return its step (0 without one)."""
        # The groups are built before the copy for the average, which is not part of the objective.
        parameters = self.groups(self.objective, self.recipe)
        optimizer = torch.optim.AdamW(
            parameters, lr=self.recipe.lr, fused=self.device.type in ("cpu", "cuda")
        )
        average = None
        if self.recipe.ema is not None:
            from timm.utils import ModelEmaV3

            average = ModelEmaV3(self.objective, decay=self.recipe.ema, use_warmup=True)
        self.state = TrainingState(self.objective, optimizer, average)
        checkpoint = self._find_checkpoint()
        if checkpoint is not None:
            self.state.restore(checkpoint)
        attention: AbstractContextManager[object] = nullcontext()
        if self.run.precision == "bf16":
            from learngene_zoo.training.precision import choose_attention, note_emulation

            note_emulation(self.run)
            attention = choose_attention(self.run, self.device, compiled=self.recipe.compile)
        self.prepared, self.optimizer = self.accelerator.prepare(
            Forward(self.objective, attention), optimizer
        )
        self.state.scaler = self.accelerator.scaler
        if checkpoint is not None and self.state.scaler and checkpoint.scaler:
            self.state.scaler.load_state_dict(dict(checkpoint.scaler))
        self.forward = torch.compile(self.prepared) if self.recipe.compile else self.prepared
        return checkpoint.step if checkpoint is not None else 0

    def _find_checkpoint(self) -> checkpoints.Checkpoint | None:
        folder = self.run.folder
        if folder is None:
            return None
        if is_first():
            folder.mkdir(parents=True, exist_ok=True)
            checkpoints.forget_drafts(folder) if self.run.resume else checkpoints.forget(folder)
        wait_for_all()
        checkpoint = checkpoints.load_newest(folder, self.identity) if self.run.resume else None
        check_agreed(checkpoint.step if checkpoint else 0, "checkpoints")
        return checkpoint

    def take_remaining(self, done: int) -> Iterator[Step]:
        """Take the remaining steps and yield each."""
        for epoch in range(done // self.loader.steps, self.recipe.epochs):
            start = max(done - epoch * self.loader.steps, 0)
            for number, batch in enumerate(self.loader.epoch(epoch, start=start), start=start + 1):
                step = epoch * self.loader.steps + number
                lr, last = (
                    compute_learning_rate(self.recipe, step, self.loader.steps),
                    number == self.loader.steps,
                )
                losses = self._step(batch, step, lr)
                average = self.state.average.module if self.state.average is not None else None
                yield Step(
                    epoch=epoch,
                    step=step,
                    steps=self.steps,
                    losses=losses,
                    lr=lr,
                    end_of_epoch=last,
                    average=average,
                )

    def _step(self, batch: Any, step: int, lr: float) -> dict[str, float]:
        seed_step(self.run.seed, step, rank())
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.objective.train()
        self.optimizer.zero_grad()
        losses = self._gradients(batch)
        self._check_finite(losses, step)
        if self.recipe.clip is not None:
            self.accelerator.clip_grad_norm_(self.objective.parameters(), self.recipe.clip)
        self.optimizer.step()
        if self.state.average is not None:
            self.state.average.update(self.objective, step=step)
        return losses

    def _gradients(self, batch: Any) -> dict[str, float]:
        """Run forward and backward over the batch, in `recipe.accumulate` pieces.

        Each loss of a piece is weighted by the number of terms that it is the mean over
        (`count_terms`), so that losses and gradients are those of the whole batch. Returns the
        losses of the batch.
        """
        images = len(batch[0])
        if images == 0:
            raise WrongCall(
                f"a batch of {self.recipe.batch_size} images is too small for {get_world_size()} "
                f"processes; set a larger {name_option('batch_size')}"
            )
        parts = (
            None if part is None else part.to(self.device, non_blocking=True) for part in batch
        )
        batch = type(batch)(*parts)
        if self.mix is not None:
            batch = self.mix(batch)
        share = share_of_batch(images, self.device)
        self.shown = round(images * get_world_size() / share)
        total: dict[str, torch.Tensor] = {}
        num_terms = sum_counts(count_terms(self.objective, batch))
        pieces = _split_batch(batch, self.recipe.accumulate)
        for i, piece in enumerate(pieces, start=1):
            weight = share * len(piece[0]) / images
            # accelerate averages over processes: hence the factor.
            weights = {
                name: get_world_size() * count / num_terms[name].clamp(min=1)
                for name, count in count_terms(self.objective, piece).items()
            }
            last = i == len(pieces)
            with nullcontext() if last else self.accelerator.no_sync(self.prepared):
                losses = {
                    name: weights.get(name, weight) * loss
                    for name, loss in self.forward(piece).items()
                }
                self.accelerator.backward(torch.stack(list(losses.values())).sum())
            for name, loss in losses.items():
                total[name] = total[name] + loss.detach() if name in total else loss.detach()
        return average_losses(total, self.device)

    def _check_finite(self, losses: dict[str, float], step: int) -> None:
        for name, value in losses.items():
            if not math.isfinite(value):
                message = (
                    f"the loss {name} is {value} at step {step} of {self.steps}, which was not"
                    " applied"
                )
                raise TrainingFailed(f"{message}; {suggest_lower_rate()}")

    def _check_weights(self) -> None:
        """Check that the last step left finite weights, since no later loss would show it."""
        for name, tensor in self.objective.state_dict().items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                message = (
                    f"the weights {name} are not finite after step {self.steps} of {self.steps}"
                )
                raise TrainingFailed(f"{message}; {suggest_lower_rate()}")

    def save(self, step: int) -> float:
        """Write a checkpoint and return how many seconds that took.

        Raises `TrainingFailed` if a weight is not finite. Of several processes only the first one
        would, and the others would wait for it: then nothing is written, and all of them fail at
        the next step.
        """
        started = time.monotonic()
        if self.run.folder is not None and is_first():
            with suppress(TrainingFailed) if get_world_size() > 1 else nullcontext():
                checkpoints.save(self.run.folder, self.state.capture(step, self.identity))
        return time.monotonic() - started

    def finish(self) -> None:
        """Give the objective its final weights and put it in eval mode."""
        self.optimizer.zero_grad()
        self._check_weights()
        self.state.keep_average()
        self.objective.eval()
        wait_for_all()


def _split_batch(batch: Any, count: int) -> list[Any]:
    """Split a batch into `count` pieces of nearly equal size, or fewer if it has fewer images.

    A field that is None stays None.
    """
    count = min(count, len(batch[0]))
    return [type(batch)(*parts) for parts in zip(*(_split_part(part, count) for part in batch))]


def _split_part(part: Any, count: int) -> Sequence[Any]:
    """Split a field of a batch: a tensor, `Tokens`, or None."""
    if part is None:
        return [None] * count
    if isinstance(part, torch.Tensor):
        return part.tensor_split(count)
    return [part[rows] for rows in torch.arange(len(part)).tensor_split(count)]


class Forward(nn.Module):
    """A wrapper of the objective, which accelerate patches instead of the objective."""

    def __init__(self, objective: nn.Module, attention: AbstractContextManager[object]) -> None:
        super().__init__()
        self.objective, self.attention = objective, attention

    def forward(self, batch: object) -> dict[str, torch.Tensor]:
        with self.attention:
            return self.objective(batch)


@contextmanager
def use_stochastic_depth(module: nn.Module, rate: float) -> Iterator[None]:
    """Apply stochastic depth (Huang et al. 2016) to every ViT in `module` within this context.

    Block i of L is skipped with probability rate * i / (L - 1). With rate 0 nothing changes. Raises
    `WrongCall` if there is no block to drop.
    """
    if not rate:
        yield
        return
    places = list(_find_drop_paths(module, rate))
    if not places:
        raise WrongCall(
            "drop_path needs blocks with drop_path1 and drop_path2, as timm's ViTs have; set it"
            " to 0"
        )
    from timm.layers import DropPath

    before = [getattr(block, attribute) for block, attribute, _ in places]
    try:
        for block, attribute, probability in places:
            setattr(block, attribute, DropPath(probability) if probability else nn.Identity())
        yield
    finally:
        for (block, attribute, _), layer in zip(places, before):
            setattr(block, attribute, layer)


def _find_drop_paths(module: nn.Module, rate: float) -> Iterator[tuple[nn.Module, str, float]]:
    """Yield the block, attribute and probability of every `DropPath`.

    A layer may contain several blocks (a routed layer contains two).
    """
    for vit in module.modules():
        layers = getattr(vit, "blocks", None)
        if not isinstance(layers, (nn.Sequential, nn.ModuleList)):
            continue
        for i, layer in enumerate(layers):
            for block, attribute in product(layer.modules(), DROP_PATH_NAMES):
                if hasattr(block, attribute):
                    yield block, attribute, rate * i / max(len(layers) - 1, 1)
