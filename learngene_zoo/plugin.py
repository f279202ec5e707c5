"""Everything that an author of a plugin imports: `from learngene_zoo.plugin import Extractor, Expander, Method, ...`.

One facade for methods and for suites of tasks, with names that stay. Importing it costs nothing: each name is fetched
from its module when it is first used, so a cold module of a plugin stays cold as long as it takes hot names inside its
functions.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learngene_zoo import plotting as plotting
    from learngene_zoo.artifacts.ancestry import Ancestry as Ancestry
    from learngene_zoo.artifacts.ancestry import open_ancestry as open_ancestry
    from learngene_zoo.artifacts.ancestry import reopen_ancestry as reopen_ancestry
    from learngene_zoo.artifacts.ancestry import sha256 as sha256
    from learngene_zoo.artifacts.descendant import Descendant as Descendant
    from learngene_zoo.artifacts.descendant import assemble as assemble
    from learngene_zoo.artifacts.descendant import fingerprint_of as fingerprint_of
    from learngene_zoo.artifacts.hub import Repository as Repository
    from learngene_zoo.artifacts.hub import licence_on_card as licence_on_card
    from learngene_zoo.artifacts.learngene import Learngene as Learngene
    from learngene_zoo.artifacts.records import LearngeneConfig as LearngeneConfig
    from learngene_zoo.artifacts.records import TaskRecord as TaskRecord
    from learngene_zoo.atomic import nearest_parent as nearest_parent
    from learngene_zoo.errors import BadData as BadData
    from learngene_zoo.errors import BadFile as BadFile
    from learngene_zoo.errors import TrainingFailed as TrainingFailed
    from learngene_zoo.errors import Unavailable as Unavailable
    from learngene_zoo.errors import WrongCall as WrongCall
    from learngene_zoo.errors import unknown as unknown
    from learngene_zoo.families.cost import Cost as Cost
    from learngene_zoo.families.family import table_of as table_of
    from learngene_zoo.families.model import empty as empty
    from learngene_zoo.families.model import initial as initial
    from learngene_zoo.families.model import model_of as model_of
    from learngene_zoo.families.model import shapes as shapes
    from learngene_zoo.families.model import shapes_in as shapes_in
    from learngene_zoo.families.model import state_of as state_of
    from learngene_zoo.families.model import uninitialised as uninitialised
    from learngene_zoo.families.spec import LIMITS as LIMITS
    from learngene_zoo.families.spec import InputFormat as InputFormat
    from learngene_zoo.families.spec import Segment as Segment
    from learngene_zoo.families.spec import Spec as Spec
    from learngene_zoo.families.surgery import only as only
    from learngene_zoo.families.surgery import resize_positions as resize_positions
    from learngene_zoo.families.surgery import take_blocks as take_blocks
    from learngene_zoo.families.surgery import without_head as without_head
    from learngene_zoo.families.vit.spec import ViTSpec as ViTSpec
    from learngene_zoo.intervals import proportion as proportion
    from learngene_zoo.method import AXES as AXES
    from learngene_zoo.method import Expander as Expander
    from learngene_zoo.method import Extractor as Extractor
    from learngene_zoo.method import Member as Member
    from learngene_zoo.method import Method as Method
    from learngene_zoo.method import Target as Target
    from learngene_zoo.method import Work as Work
    from learngene_zoo.method import details_of as details_of
    from learngene_zoo.recipe import Recipe as Recipe
    from learngene_zoo.runs.cache import Part as Part
    from learngene_zoo.runs.cache import once as once
    from learngene_zoo.runs.distributed import gathered as gathered
    from learngene_zoo.runs.distributed import is_first as is_first
    from learngene_zoo.runs.distributed import join as join
    from learngene_zoo.runs.distributed import wait_for_all as wait_for_all
    from learngene_zoo.runs.distributed import world as world
    from learngene_zoo.runs.run import Run as Run
    from learngene_zoo.seeds import derive_seed as derive_seed
    from learngene_zoo.seeds import noise as noise
    from learngene_zoo.seeds import uniform as uniform
    from learngene_zoo.settings import FLAT as FLAT
    from learngene_zoo.settings import Bounds as Bounds
    from learngene_zoo.settings import Json as Json
    from learngene_zoo.settings import check_bounds as check_bounds
    from learngene_zoo.settings import from_json as from_json
    from learngene_zoo.settings import settings_of as settings_of
    from learngene_zoo.settings import to_json as to_json
    from learngene_zoo.settings import with_settings as with_settings
    from learngene_zoo.storage import StateDict as StateDict
    from learngene_zoo.storage import read_json as read_json
    from learngene_zoo.storage import write_json as write_json
    from learngene_zoo.tasks.batches import Batches as Batches
    from learngene_zoo.tasks.batches import open_loader as open_loader
    from learngene_zoo.tasks.catalogue import find_entry as find_entry
    from learngene_zoo.tasks.catalogue import open_task as open_task
    from learngene_zoo.tasks.folders import Files as Files
    from learngene_zoo.tasks.folders import labelled as labelled
    from learngene_zoo.tasks.folders import noted as noted
    from learngene_zoo.tasks.folders import open_folder as open_folder
    from learngene_zoo.tasks.folders import subfolders as subfolders
    from learngene_zoo.tasks.hub_data import hub_tables as hub_tables
    from learngene_zoo.tasks.hub_data import open_hub as open_hub
    from learngene_zoo.tasks.images import IGNORED as IGNORED
    from learngene_zoo.tasks.images import decoded as decoded
    from learngene_zoo.tasks.images import decoded_indices as decoded_indices
    from learngene_zoo.tasks.loader import Batch as Batch
    from learngene_zoo.tasks.splits import SEED as SEED
    from learngene_zoo.tasks.splits import Labelled as Labelled
    from learngene_zoo.tasks.splits import PixelSplit as PixelSplit
    from learngene_zoo.tasks.splits import Rows as Rows
    from learngene_zoo.tasks.splits import completed as completed
    from learngene_zoo.tasks.splits import in_roles as in_roles
    from learngene_zoo.tasks.splits import photo_task as photo_task
    from learngene_zoo.tasks.splits import task_of as task_of
    from learngene_zoo.tasks.suite import Entry as Entry
    from learngene_zoo.tasks.suite import HubSource as HubSource
    from learngene_zoo.tasks.suite import Suite as Suite
    from learngene_zoo.tasks.suite import built_in as built_in
    from learngene_zoo.tasks.suite import split_sizes as split_sizes
    from learngene_zoo.tasks.tables import known_splits as known_splits
    from learngene_zoo.tasks.tables import rows_of as rows_of
    from learngene_zoo.tasks.tables import task_of_tables as task_of_tables
    from learngene_zoo.tasks.task import SPLITS as SPLITS
    from learngene_zoo.tasks.task import Attribute as Attribute
    from learngene_zoo.tasks.task import Samples as Samples
    from learngene_zoo.tasks.task import Split as Split
    from learngene_zoo.tasks.task import Task as Task
    from learngene_zoo.training.device import open_device as open_device
    from learngene_zoo.training.distillation import Distilled as Distilled
    from learngene_zoo.training.distillation import Features as Features
    from learngene_zoo.training.distillation import Teacher as Teacher
    from learngene_zoo.training.distillation import divergence as divergence
    from learngene_zoo.training.distillation import logits_loss as logits_loss
    from learngene_zoo.training.distillation import observing as observing
    from learngene_zoo.training.distillation import teacher_for as teacher_for
    from learngene_zoo.training.evaluate import Evaluation as Evaluation
    from learngene_zoo.training.evaluate import evaluate as evaluate
    from learngene_zoo.training.evaluate import evaluate_each as evaluate_each
    from learngene_zoo.training.fit import fit as fit
    from learngene_zoo.training.fit import training_images as training_images
    from learngene_zoo.training.loop import train as train
    from learngene_zoo.training.metric import metric_for as metric_for
    from learngene_zoo.training.objectives import CLASS_LOSS as CLASS_LOSS
    from learngene_zoo.training.objectives import attribute_loss as attribute_loss
    from learngene_zoo.training.objectives import objective_for as objective_for
    from learngene_zoo.training.step import parameter_groups as parameter_groups
    from learngene_zoo.units import human_count as human_count

# Module (below learngene_zoo): its names; NAME=ORIGINAL where it is called differently there, NAME= for the module itself.
_HOMES = {
    "atomic": "nearest_parent",
    "artifacts.ancestry": "Ancestry open_ancestry reopen_ancestry sha256",
    "artifacts.descendant": "Descendant assemble fingerprint_of",
    "artifacts.hub": "Repository fetch_from_hub=fetch licence_on_card",
    "artifacts.learngene": "Learngene",
    "artifacts.records": "LearngeneConfig TaskRecord",
    "errors": "BadData BadFile TrainingFailed Unavailable WrongCall unknown",
    "families.cost": "Cost count_params=params",
    "families.family": "table_of",
    "families.model": "empty initial model_of shapes shapes_in state_of uninitialised",
    "families.spec": "InputFormat LIMITS Segment Spec",
    "families.surgery": "only resize_positions take_blocks without_head",
    "families.vit.spec": "ViTSpec",
    "intervals": "proportion",
    "method": "AXES details_of Expander Extractor Member Method Target Work",
    "plotting": "plotting=",
    "recipe": "Recipe",
    "runs.cache": "Part once",
    "runs.distributed": "gathered is_first join wait_for_all world",
    "runs.run": "Run",
    "seeds": "derive_seed noise uniform",
    "settings": "Bounds FLAT Json check_bounds from_json settings_of to_json with_settings",
    "storage": "StateDict read_json write_json",
    "tasks.batches": "Batches open_loader",
    "tasks.catalogue": "find_entry open_task",
    "tasks.folders": "Files labelled noted open_folder subfolders",
    "tasks.hub_data": "hub_tables open_hub",
    "tasks.images": "IGNORED decoded decoded_indices",
    "tasks.loader": "Batch",
    "tasks.splits": "Labelled PixelSplit Rows SEED completed in_roles photo_task stratified_parts=parts task_of",
    "tasks.suite": "Entry HubSource Suite built_in split_sizes",
    "tasks.tables": "known_splits rows_of task_of_tables",
    "tasks.task": "Attribute SPLITS Samples Split Task",
    "training.device": "open_device",
    "training.distillation": "Distilled Features Teacher divergence logits_loss observing teacher_for",
    "training.step": "parameter_groups",
    "training.evaluate": "Evaluation evaluate evaluate_each",
    "training.fit": "fit training_images",
    "training.loop": "train",
    "training.metric": "metric_for",
    "training.objectives": "CLASS_LOSS attribute_loss objective_for",
    "units": "human_count",
}
_HOME_OF = {
    name.partition("=")[0]: (home, name.rpartition("=")[2]) for home, names in _HOMES.items() for name in names.split()
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home, original = _HOME_OF[name]
    module = import_module(f"learngene_zoo.{home}")
    return getattr(module, original) if original else module


def __dir__() -> list[str]:
    return __all__
