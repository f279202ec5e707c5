"""The functions behind the commands. The command line, torch.hub, notebooks and tests call them.

Each takes names, paths or objects and returns the new object; with `out` it also writes the object.
"""

from learngene_zoo.lifecycle.analyse import compare as compare
from learngene_zoo.lifecycle.analyse import predict as predict
from learngene_zoo.lifecycle.analyse import probe as probe
from learngene_zoo.lifecycle.analyse import recommend as recommend
from learngene_zoo.lifecycle.conversion import Conversion as Conversion
from learngene_zoo.lifecycle.conversion import convert as convert
from learngene_zoo.lifecycle.expansion import expand as expand
from learngene_zoo.lifecycle.extraction import extract as extract
from learngene_zoo.lifecycle.finetuning import AUTO_SETTINGS as AUTO_SETTINGS
from learngene_zoo.lifecycle.finetuning import FinetuneConfig as FinetuneConfig
from learngene_zoo.lifecycle.finetuning import finetune as finetune
from learngene_zoo.lifecycle.healing import heal as heal
from learngene_zoo.lifecycle.language import LANGUAGE_SIZES as LANGUAGE_SIZES
from learngene_zoo.lifecycle.language import LANGUAGE_TEXTS as LANGUAGE_TEXTS
from learngene_zoo.lifecycle.language import TextSizes as TextSizes
from learngene_zoo.lifecycle.language import list_language_families as list_language_families
from learngene_zoo.lifecycle.language import train_language as train_language
from learngene_zoo.lifecycle.learngenes import plan as plan
from learngene_zoo.lifecycle.learngenes import plot as plot
from learngene_zoo.lifecycle.models import TRAIN as TRAIN
from learngene_zoo.lifecycle.models import evaluate as evaluate
from learngene_zoo.lifecycle.models import export as export
from learngene_zoo.lifecycle.models import train as train
from learngene_zoo.lifecycle.rates import FINETUNE as FINETUNE
from learngene_zoo.lifecycle.rates import FULL_RATE as FULL_RATE
from learngene_zoo.lifecycle.rates import INHERITED_DECAY as INHERITED_DECAY
from learngene_zoo.lifecycle.rates import INHERITED_LR as INHERITED_LR
from learngene_zoo.lifecycle.rates import TEXT_LR as TEXT_LR
from learngene_zoo.lifecycle.rates import WARMUP_STEPS as WARMUP_STEPS
from learngene_zoo.lifecycle.rates import adapt_to_steps as adapt_to_steps
from learngene_zoo.lifecycle.rates import choose_fit as choose_fit
from learngene_zoo.lifecycle.rates import choose_rate as choose_rate
from learngene_zoo.lifecycle.rates import choose_rates as choose_rates
from learngene_zoo.lifecycle.shrinking.request import ShrinkConfig as ShrinkConfig
from learngene_zoo.lifecycle.shrinking.steps import plan_shrink as plan_shrink
from learngene_zoo.lifecycle.shrinking.steps import shrink as shrink
from learngene_zoo.training.healing.settings import HEAL as HEAL
from learngene_zoo.training.healing.settings import HealConfig as HealConfig
