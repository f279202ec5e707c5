"""BERT: transformers' `BertModel`, with the head of `BertForSequenceClassification` or none."""

from learngene_zoo.families.bert.names import convert_config, rename_tensors, write_config
from learngene_zoo.families.bert.spec import BertSpec
from learngene_zoo.families.bert.table import TABLE, count_flops
from learngene_zoo.families.family import Family, TransformersNames

_TINY = BertSpec(
    layers=3, width=32, heads=2, classes=4, vocabulary=60, positions=12, pad_token=0, pool="mean"
)

FAMILY = Family(
    name="bert",
    spec=BertSpec,
    table=TABLE,
    flops=count_flops,
    transformers=TransformersNames(
        model_type="bert",
        module="transformers.models.bert.modeling_bert",
        config=write_config,
        values=convert_config,
        rename=rename_tensors,
    ),
    supported=(
        "BERT in transformers' format (bert-base-uncased, sentence-transformers/all-MiniLM-L6-v2,"
        " ...)"
    ),
    examples=(_TINY, _TINY.with_(mlp_ratio=2.0, activation="relu", pool="pooler")),
    host="learngene_zoo.families.bert.host",
)
