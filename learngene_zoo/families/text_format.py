"""`TextFormat`: the texts that a model takes, `Tokens`: a batch of them, and the tokenizers by
checksum.

The tokenizer belongs to a model as normalisation does: its file travels with the weights. A format
names it by the sha256 of tokenizer.json, and `register_tokenizer` makes the content of such a file
known to this process under that name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from learngene_zoo.errors import BadFile, Unavailable, WrongCall
from learngene_zoo.settings import Bounds, Json, check_bounds, to_json
from learngene_zoo.storage import parse_json

if TYPE_CHECKING:
    import torch

MAX_TOKENS = 2**20  # far more than the positions of any existing model
MAX_VOCABULARY = 10**7
MULTIPLE = 8  # batches are padded to a multiple of this, which GPUs compute fastest
TEXT_EXTRA = 'pip install "learngene-zoo[text]"'
# Names of the pad token in tokenizers that do not state it.
PAD_NAMES = ("[PAD]", "<pad>", "<|pad|>", "<PAD>")


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """Texts as ids of a tokenizer, padded on the right.

    Attributes:
        tokens: the maximal number of tokens; longer texts are truncated.
        tokenizer: the sha256 of tokenizer.json, 64 hexadecimal digits.
        pad: the id of the pad token.
    """

    tokens: Annotated[int, Bounds(least=1, most=MAX_TOKENS)]
    tokenizer: str
    pad: Annotated[int, Bounds(least=0, most=MAX_VOCABULARY)]

    def __post_init__(self) -> None:
        check_bounds(self)
        if not re.fullmatch("[0-9a-f]{64}", self.tokenizer):
            raise WrongCall(f"tokenizer is {self.tokenizer!r:.80}; expected 64 hexadecimal digits")

    @property
    def identity(self) -> Json:
        """The JSON of all values, which identifies texts in this format."""
        return ["TextFormat", to_json(self)]


@dataclass(frozen=True)
class Tokens:
    """A batch of texts as token ids. `len()` is the number of texts.

    Attributes:
        ids: int64 (B, T), padded on the right.
        mask: int64 (B, T), 1 for tokens and 0 for padding.
        types: int64 (B, T), 1 for the tokens of the second text of a pair and 0 for others; None if
            the tokenizer does not tell the two apart.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    types: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Any) -> Tokens:
        """Return the texts that a slice, a mask or indices select."""
        return Tokens(
            self.ids[rows], self.mask[rows], None if self.types is None else self.types[rows]
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Tokens:
        """Return the batch on a device."""
        types = None if self.types is None else self.types.to(device, non_blocking=non_blocking)
        return Tokens(
            self.ids.to(device, non_blocking=non_blocking),
            self.mask.to(device, non_blocking=non_blocking),
            types,
        )


# Tokenizers by checksum.

_contents: dict[str, str] = {}


def register_tokenizer(content: str) -> str:
    """Make the content of a tokenizer.json known to this process; return its sha256."""
    digest = hashlib.sha256(content.encode("utf-8")).hexdigest()
    _contents[digest] = content
    return digest


def read_tokenizer(digest: str) -> str:
    """Return the content of the tokenizer.json with this sha256.

    Raises `Unavailable` if no opened model has it.
    """
    if digest not in _contents:
        raise Unavailable(
            f"the tokenizer {digest[:12]} is not known; open the model that it belongs to"
        )
    return _contents[digest]


def make_text_format(
    content: str, tokens: int, config: Mapping[str, Any] | None = None, pad: int | None = None
) -> TextFormat:
    """Register a tokenizer and return the format of its texts.

    Args:
        content: the content of tokenizer.json.
        tokens: the maximal number of tokens of a text.
        config: the content of tokenizer_config.json, which may name the pad token.
        pad: the id of the pad token; None: that which the files name.

    Raises:
        BadFile: for a tokenizer that cannot be read, and without a pad token.
    """
    chosen = find_pad(content, config or {}) if pad is None else pad
    return TextFormat(tokens=tokens, tokenizer=register_tokenizer(content), pad=chosen)


def find_pad(content: str, config: Mapping[str, Any]) -> int:
    """Return the id of the pad token that tokenizer.json or tokenizer_config.json names.

    Raises `BadFile` if there is none.
    """
    try:
        stored: Any = parse_json(content.encode())
        added = {entry["content"]: int(entry["id"]) for entry in stored.get("added_tokens") or ()}
        vocabulary = (stored.get("model") or {}).get("vocab") or {}
        padding = stored.get("padding") or {}
        if "pad_id" in padding:
            return int(padding["pad_id"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadFile("tokenizer.json is not a file of the package `tokenizers`") from None
    named = config.get("pad_token")
    name = named.get("content") if isinstance(named, dict) else named
    for candidate in (name, *PAD_NAMES):
        if candidate in added:
            return added[candidate]
        if isinstance(vocabulary, dict) and candidate in vocabulary:
            return int(vocabulary[candidate])
    raise BadFile(
        "the tokenizer has no pad token, without which texts of different lengths make no batch; "
        'name one: "pad_token" in tokenizer_config.json, or pad_token_id in config.json'
    )
