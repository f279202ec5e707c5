"""The public names of the package, and the modules that they come from."""

from learngene_zoo.artifacts.descendant import Descendant as Descendant
from learngene_zoo.artifacts.learngene import Learngene as Learngene
from learngene_zoo.artifacts.records import LearngeneConfig as LearngeneConfig
from learngene_zoo.artifacts.shelf import load as load
from learngene_zoo.errors import TrainingWarning as TrainingWarning
from learngene_zoo.errors import ZooError as ZooError
from learngene_zoo.families.eva.spec import EvaSpec as EvaSpec
from learngene_zoo.families.vit.spec import ViTSpec as ViTSpec
from learngene_zoo.hub.fetch import fetch as fetch
from learngene_zoo.lifecycle import compare as compare
from learngene_zoo.lifecycle import convert as convert
from learngene_zoo.lifecycle import evaluate as evaluate
from learngene_zoo.lifecycle import expand as expand
from learngene_zoo.lifecycle import export as export
from learngene_zoo.lifecycle import extract as extract
from learngene_zoo.lifecycle import finetune as finetune
from learngene_zoo.lifecycle import heal as heal
from learngene_zoo.lifecycle import plan as plan
from learngene_zoo.lifecycle import plot as plot
from learngene_zoo.lifecycle import predict as predict
from learngene_zoo.lifecycle import probe as probe
from learngene_zoo.lifecycle import recommend as recommend
from learngene_zoo.lifecycle import shrink as shrink
from learngene_zoo.lifecycle import train as train
from learngene_zoo.method.contract import Expander as Expander
from learngene_zoo.method.contract import Extractor as Extractor
from learngene_zoo.method.contract import Method as Method
from learngene_zoo.method.sizes import Budget as Budget
from learngene_zoo.method.sizes import Member as Member
from learngene_zoo.method.sizes import Target as Target
from learngene_zoo.publishing.publish import publish as publish
from learngene_zoo.runs.run import Run as Run
from learngene_zoo.settings import Recipe as Recipe
from learngene_zoo.tasks.catalogue import open_task as open_task
from learngene_zoo.version import __version__ as __version__

def read_stub(module: str) -> dict[str, tuple[str, str]]: ...
