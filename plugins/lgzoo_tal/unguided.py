"""The meta-training of LoGAH and GHN-3, without guidance: on a source task, then on all others.

Each step draws an architecture, predicts its weights, and backpropagates the task's loss and 3e-5
times the norms of the predicted tensors into the hypernetwork. TAL's tables compare four protocols:

    v1  --source none --no-joint    each task separately
    v2  --source forms  --no-joint  the source task first, then each task separately
    v3  --source none               all tasks jointly
    v4  --source forms              the source task first, then all tasks jointly
"""

from __future__ import annotations

from collections.abc import Sequence

from learngene_zoo.plugin import Ancestry, Learngene, LearngeneConfig, Run, Task
from lgzoo_tal.config import Curriculum, Stage
from lgzoo_tal.meta_training import (
    collect_learngene,
    embed_tasks,
    group_tasks,
    meta_train_on_groups,
    meta_train_on_source,
    split_tasks,
)


def meta_train_without_guidance(
    curriculum: Curriculum,
    stages: tuple[Stage, Stage],
    outline: LearngeneConfig,
    ancestry: Ancestry,
    tasks: Sequence[Task],
    run: Run,
) -> Learngene:
    """Train stage 1 on the source task, then stage 2 on the other tasks, if there are any.

    Args:
        curriculum: the tasks of both stages.
        stages: the settings of both stages.
        outline: the config of the extraction.
        ancestry: the ancestry model, of which the shape, the input format and inherited embeddings
            are used, and the features in the task embeddings.
        tasks: the opened tasks.
        run: how to compute.

    Raises:
        WrongCall: as `split_tasks` does.
    """
    source, other_tasks = split_tasks(curriculum, ancestry.spec, tasks, run)
    embeddings = embed_tasks(curriculum, ancestry, source, other_tasks, run)
    stage_1, stage_2 = stages
    first = meta_train_on_source(stage_1, ancestry, source, run)
    groups = group_tasks(curriculum, other_tasks)
    seconds = meta_train_on_groups(stage_2, ancestry, groups, first, embeddings, run)
    return collect_learngene(outline, source, other_tasks, first, seconds, embeddings, ancestry)
