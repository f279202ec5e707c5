"""Healing in rounds: the descendant is built through intermediate sizes, which are healed as well.

A large step is divided into small ones, as in Muralidharan et al. 2024, Compact Language Models via
Pruning and Knowledge Distillation (Minitron). In each round

    1  extract  a learngene of the model of the round before, at first of the ancestry model
    2  expand   it to the size of the round, by the method of the descendant
    3  heal     the result, taught by the ancestry model

The sizes lie geometrically between those of the ancestry model and of the descendant. The steps are
the verbs with these names, so that each one is resumed in its own folder below the run's.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.families.family import get_table
from learngene_zoo.families.spec import Spec
from learngene_zoo.lifecycle.expansion import expand
from learngene_zoo.lifecycle.extraction import extract
from learngene_zoo.lifecycle.healing_rounds.sizes import (
    STEPS,
    RoundPlan,
    describe_steps,
    list_steps,
)
from learngene_zoo.lifecycle.opening import resume_if_begun
from learngene_zoo.method.sizes import Member
from learngene_zoo.runs.cache import compute_once
from learngene_zoo.runs.progress import say
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Json, to_json, with_settings
from learngene_zoo.training.healing.blocks import compose_blocks

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.storage import StateDict

# Records of a descendant that do not depend on its method.
COMMON = (
    *("method", "method_package", "method_title", "learngene", "settings", "control"),
    *("ancestries", "seed", "versions"),
)
BLOCK_RECORDS = ("runs", "teacher_depth")  # that `match_blocks` reads
WORK = "rounds"  # folder of the rounds within that of the run; in each:
LEARNGENE, MODEL, HEALED = "learngene", "model", "healed"


def build_in_rounds(
    start: Descendant,
    plan: RoundPlan,
    ancestry: Ancestry,
    images: str,
    heal_model: Callable[..., Descendant],
    run: Run,
) -> tuple[Descendant, list[Json]]:
    """Run all rounds up to the healing of the last one.

    Args:
        start: the descendant.
        plan: the sizes.
        ancestry: the ancestry model.
        images: images without labels, which extractions see.
        heal_model: the verb `heal` with images and settings, which is called with a model,
            `teacher`, `out` and `run`.
        run: the run, below whose folder the rounds are.

    Returns:
        The descendant with the weights of the last round and the head of `start`, and a record of
        each round.
    """
    sizes = [list_steps(member.spec) for member in plan.members]
    # A result from the beginning, so that the folder of an interrupted run is kept.
    compute_once(run.part(WORK), "heal.rounds", _record_sizes, None, [sizes])
    source, model, records = ancestry.record.source, None, list[Json]()
    with _open_work(run) as work:
        for number, member in enumerate(plan.members, start=1):
            say(run, f"round {number} of {len(sizes)}: {describe_steps(member.spec)}")
            folder, before = work / str(number), model
            built = _build_model(plan, member, source, images, start.spec, folder, run)
            changes = {key: built.provenance[key] for key in built.provenance if key not in COMMON}
            record: dict[str, Json] = {name: getattr(member.spec, name) for name in STEPS}
            records.append({**record, "expansion": changes})
            model = _record_origin(built, changes, before, ancestry, start)
            if number == len(sizes):
                return _restore_head(model, changes, start), records
            path = folder / HEALED
            model = heal_model(
                model, teacher=ancestry.record.source, out=path, run=resume_if_begun(path, run)
            )
            healed: Any = model.provenance["healed"]
            records[-1] = {**record, "expansion": changes, "metrics": healed["metrics"]}
            source = str(path)
    raise AssertionError("the last round returns")


def _record_sizes(_: None, sizes: Sequence[Sequence[float]], run: Run) -> tuple[StateDict, Json]:
    return {}, [list(steps) for steps in sizes]


@contextmanager
def _open_work(run: Run) -> Iterator[Path]:
    """Yield the folder of the rounds, a temporary one for a run without a folder."""
    if run.folder is None:
        with tempfile.TemporaryDirectory() as scratch:
            yield Path(scratch)
        return
    if not run.resume:
        remove_work(run.folder)
    yield run.folder / WORK


def remove_work(folder: Path) -> None:
    """Remove the learngenes and models of rounds from the folder of a run."""
    shutil.rmtree(folder / WORK, ignore_errors=True)


def _build_model(
    plan: RoundPlan,
    member: Member,
    source: str,
    images: str,
    spec: Spec,
    folder: Path,
    run: Run,
) -> Descendant:
    """Extract a learngene from `source` and expand it to the size of a round, unless that is done.

    Args:
        plan: the method, and the settings of the expansion.
        member: the size.
        source: the model of the round before.
        images: images for the extraction.
        spec: the shape of the descendant, whose image size and pooling the models have.
        folder: of the round.
        run: how to compute.
    """
    from learngene_zoo.artifacts.descendant import load_descendant

    path, gene = folder / MODEL, folder / LEARNGENE
    if path.is_dir():
        return load_descendant(path)
    extract(
        plan.method.name,
        ancestries=source,
        tasks=[] if plan.method.tasks == "none" else [images],
        image_size=spec.image_size,
        pool=spec.pool if spec.pool == "avg" else None,
        out=gene,
        run=resume_if_begun(gene, run),
    )
    expand(
        gene,
        target=member.target,
        expander=with_settings(plan.expander, member.settings),
        out=path,
        run=resume_if_begun(path, run),
    )
    return load_descendant(path)


def _record_origin(
    built: Descendant,
    changes: Mapping[str, Json],
    before: Descendant | None,
    ancestry: Ancestry,
    start: Descendant,
) -> Descendant:
    """Return a model of a round with the records of a descendant of the ancestry model itself.

    Args:
        built: the model, whose records are relative to the model of the round before.
        changes: those of its records that its method has written.
        before: the healed model of the round before. None: the ancestry model.
        ancestry: the ancestry model.
        start: the descendant that is healed.
    """
    blocks = {name: changes[name] for name in BLOCK_RECORDS if name in changes}
    if before is not None and (blocks or any(name in before.provenance for name in BLOCK_RECORDS)):
        depths = ancestry.spec.layers, before.spec.layers, built.spec.layers
        blocks = compose_blocks(*depths, before.provenance, blocks)
    recorded: Any = start.provenance.get("ancestries") or []
    same = [item for item in recorded if item.get("sha256") == ancestry.record.sha256]
    provenance = {name: built.provenance[name] for name in COMMON if name in built.provenance}
    ancestries = same or to_json([ancestry.record])
    return replace(
        built, provenance={**provenance, **blocks, "ancestries": ancestries}, folder=None
    )


def _restore_head(model: Descendant, changes: Mapping[str, Json], start: Descendant) -> Descendant:
    """Return the descendant with the weights of the last round, and with the head that it has."""
    table = get_table(start.spec)
    head = {name: start.state[name] for name in start.state if table.is_head(name)}
    kept = {name: value for name, value in start.provenance.items() if name not in changes}
    blocks = {name: model.provenance[name] for name in BLOCK_RECORDS if name in model.provenance}
    provenance = {**kept, **blocks, "ancestries": model.provenance["ancestries"]}
    return replace(start, state={**model.state, **head}, provenance=provenance, folder=None)
