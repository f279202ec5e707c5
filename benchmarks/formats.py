"""How far are the outputs of a model in another format from those of timm's?

Varied: the format and the kind of model; random models of the size of ViT-S (12 layers, width 384,
224 pixels), whose tensors are all away from their initial 0 or 1, and with `--ancestry` the first 6
layers of a real DINOv2-S.

Measured: the largest difference of an output of the opened folder from that of the model, for two
random images on the CPU, and the largest output. Outputs are the tokens after the final norm, for
open_clip and CLIP the pooled token, and for a model with a head the logits.

Command: DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small DINOV2` writes.

    python benchmarks/formats.py [--ancestry DINOV2]
    python benchmarks/formats.py --table       write the table from the results

Results: benchmarks/results/formats.json.
Page: docs/formats.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import learngene_zoo as lg
import machine
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.families.eva.spec import EvaSpec
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.conversion import open_convertible
from learngene_zoo.pretrained.formats.check import NUM_IMAGES, read_outputs
from learngene_zoo.runs.run import Run
from pages import DOCS, replace_between

RESULT = machine.RESULTS / "formats.json"
VIT = ViTSpec(layers=12, width=384, heads=6, classes=0)
DINOV2 = VIT.with_(patch_size=14, layer_scale=0.1)
GATED = DINOV2.with_(mlp="swiglu_packed", activation="silu", mlp_ratio=16 / 3)
DINOV3 = EvaSpec(
    layers=12,
    width=384,
    heads=6,
    classes=0,
    registers=4,
    rotary=True,
    rope_type="dinov3",
    rope_half=True,
    rope_temperature=100.0,
    absolute=False,
    layer_scale=0.1,
    norm_eps=1e-5,
    final_norm=True,
    fc_norm=False,
)
SIGLIP = VIT.with_(class_token=False, pool="map", activation="gelu_tanh")
CLIP = VIT.with_(pre_norm=True, norm_eps=1e-5, activation="quick_gelu")
CASES: tuple[tuple[str, str, Any], ...] = (
    ("ViT, DeiT", "transformers:vit", VIT),
    ("ViT with a head", "transformers:vit", VIT.with_(classes=100)),
    ("DINOv2", "transformers:dinov2", DINOV2),
    ("DINOv2 with a head", "transformers:dinov2", DINOV2.with_(classes=100)),
    ("DINOv2 with SwiGLU", "transformers:dinov2", GATED),
    ("DINOv2 with registers", "transformers:dinov2_with_registers", DINOV2.with_(registers=4)),
    ("DINOv2 as a ViT", "transformers:vit", DINOV2),
    ("DINOv3", "transformers:dinov3_vit", DINOV3),
    ("SigLIP", "transformers:siglip", SIGLIP),
    ("CLIP", "transformers:clip", CLIP),
    ("I-JEPA", "transformers:ijepa", VIT.with_(class_token=False, pool="avg", fc_norm=False)),
    ("CLIP", "open_clip:clip", CLIP),
    ("DINOv2", "open_clip:clip", DINOV2),
    ("DINOv2", "dinov2", DINOV2),
    ("DINOv2 with registers", "dinov2", DINOV2.with_(registers=4)),
)
REAL = ("transformers:dinov2", "transformers:vit", "open_clip:clip", "dinov2")


def build_model(spec: Any) -> Descendant:
    """Return a random model, none of whose tensors is at an initial 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    state = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in assemble(spec, {}, seed=0, scheme="fan_in").state.items()
    }
    return Descendant(spec=spec, state=state)


def measure_format(name: str, model: Descendant, format: str, folder: Path) -> dict[str, Any]:
    """Convert a model, and return a row of the table."""
    result = lg.convert(model, folder, format=format, force=True, run=Run(threads=2))
    size = (NUM_IMAGES, model.spec.channels, model.spec.image_size, model.spec.image_size)
    images_BCHW = torch.randn(size, generator=torch.Generator().manual_seed(0))
    outputs = read_outputs(open_convertible(model, Run())[0], images_BCHW)
    is_pooled = format in ("open_clip:clip", "transformers:clip")
    output = "logits" if model.spec.classes else "pooled" if is_pooled else "tokens"
    largest = float(outputs[output].abs().max())
    return {
        "model": name,
        "format": result.format,
        "output": output,
        "difference": result.difference,
        "largest": largest,
    }


def main() -> None:
    """Measure all formats, and write the rows and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ancestry", help="a folder with a real DINOv2-S")
    parser.add_argument("--table", action="store_true", help="only write the table")
    args = parser.parse_args()
    if not args.table:
        rows = []
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for name, format, spec in CASES:
                rows.append(measure_format(name, build_model(spec), format, folder / "out"))
                print(rows[-1])
            if args.ancestry:
                lg.extract("first_k", ancestries=args.ancestry, out=folder / "learngene")
                model = lg.expand(folder / "learngene", layers=6)
                for format in REAL:
                    name = "DINOv2-S (real), 6 layers"
                    rows.append(measure_format(name, model, format, folder / "out"))
                    print(rows[-1])
        RESULT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    rows = json.loads(RESULT.read_text(encoding="utf-8"))
    lines = ["| model | format | output | largest difference | largest output |"]
    lines.append("|---|---|---|---:|---:|")
    for row in rows:
        lines.append(
            f"| {row['model']} | `{row['format']}` | {row['output']} | {row['difference']:.2g} | "
            f"{row['largest']:.2g} |"
        )
    replace_between(DOCS / "formats.md", "differences", "\n".join(lines))


if __name__ == "__main__":
    main()
