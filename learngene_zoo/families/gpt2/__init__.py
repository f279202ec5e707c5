"""GPT-2: transformers' `GPT2Model`, with the head of `GPT2ForSequenceClassification` or none."""

from learngene_zoo.families.family import Family, TransformersNames
from learngene_zoo.families.gpt2.names import convert_config, rename_tensors, write_config
from learngene_zoo.families.gpt2.spec import Gpt2Spec
from learngene_zoo.families.gpt2.table import TABLE, count_flops

_TINY = Gpt2Spec(
    layers=3, width=32, heads=2, classes=4, vocabulary=60, positions=12, pad_token=0, eos_token=1
)

FAMILY = Family(
    name="gpt2",
    spec=Gpt2Spec,
    table=TABLE,
    flops=count_flops,
    transformers=TransformersNames(
        model_type="gpt2",
        module="transformers.models.gpt2.modeling_gpt2",
        config=write_config,
        values=convert_config,
        rename=rename_tensors,
    ),
    predicts_words=True,
    supported="GPT-2 in transformers' format (openai-community/gpt2, distilgpt2, ...)",
    examples=(_TINY, _TINY.with_(mlp_ratio=2.0, activation="gelu")),
    host="learngene_zoo.families.gpt2.host",
)
