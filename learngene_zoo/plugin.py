"""The names that an author of a plugin imports: `from learngene_zoo.plugin import Method, ...`.

One facade for methods and for suites of tasks, with stable names. Importing it costs nothing: each
name is fetched from its module when it is first used, so a cold module of a plugin stays cold as
long as it uses hot names inside its functions. The names and their modules are defined once, in
`plugin.pyi`, which type checkers read too. The names of version 1.0.0 still work, with a warning.
"""

from importlib import import_module
from typing import Any

from learngene_zoo import read_stub
from learngene_zoo.errors import warn_of_new_name

_HOME_OF = read_stub(__file__)
__all__ = sorted(_HOME_OF)

# The names that version 1.0.0 had for some functions.
FORMER_NAMES = {
    "attribute_loss": "compute_attribute_loss",
    "axes_of": "list_axes",
    "axis_of_layers": "find_axis_of_layers",
    "built_in": "build_task",
    "details_of": "parse_details",
    "dimensions_of": "list_dimensions",
    "divergence": "compute_divergence",
    "empty": "build_empty",
    "evaluation_batch_size": "choose_batch_size",
    "human_count": "format_count",
    "inherited_weights": "copy_weights",
    "initial": "initialise",
    "licence_on_card": "read_card_licence",
    "logits_loss": "make_logits_loss",
    "metric_for": "choose_metric",
    "model_of": "build_model",
    "nearest_parent": "find_nearest_parent",
    "noise": "draw_noise",
    "note_left_out": "list_left_out",
    "objective_for": "make_objective",
    "once": "compute_once",
    "only": "select_tensors",
    "parameter_groups": "make_parameter_groups",
    "photo_task": "assemble_photo_task",
    "progress": "show_progress",
    "proportion": "compute_interval",
    "settings_of": "list_settings",
    "sha256": "compute_sha256",
    "shapes": "get_shapes",
    "shapes_in": "read_shapes",
    "state_of": "get_state_dict",
    "stratified_parts": "split_stratified",
    "table_of": "get_table",
    "task_of": "assemble_task",
    "task_of_tables": "assemble_from_tables",
    "teacher_for": "train_teacher",
    "teacher_named": "open_teacher",
    "text_format_of": "read_text_format",
    "training_images": "load_training_images",
    "uniform": "draw_uniform",
    "unknown": "refuse_unknown",
    "without_head": "remove_head",
    "world": "get_world_size",
}


def __getattr__(name: str) -> Any:
    if name in FORMER_NAMES:
        return __getattr__(warn_of_new_name(__name__, name, FORMER_NAMES[name]))
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, original = _HOME_OF[name]
    if home == "learngene_zoo":  # a module of the package, which is a name of the facade as a whole
        return import_module(f"{home}.{original}")
    return getattr(import_module(home), original)


def __dir__() -> list[str]:
    return __all__
