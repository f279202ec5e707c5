"""A tiny ancestry model and its calibration images, for the tests of pruning."""

from learngene_zoo.families.family import load_family
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_closed_form.calibration import Calibration, sample_pictures
from lgzoo_closed_form.modules.streams import Pictures

SPEC = load_family("vit").examples[0].with_(layers=4, width=48, heads=3)
SETTINGS = Calibration(images=24)


def sample_toy_pictures(spec: ViTSpec) -> Pictures:
    """Return all images, with the recorded tokens of each."""
    ancestry = make_tiny_ancestry(spec=spec)
    return sample_pictures(spec, SETTINGS, make_tiny_task(), ancestry.input_format, Run(seed=1))
