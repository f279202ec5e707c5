"""Texts in memory, one for each row, with the name of each for errors."""

from __future__ import annotations

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.task import Sample
from learngene_zoo.tasks.texts.encoding import Text


@dataclass(frozen=True)
class TextRows:
    """Texts or pairs of texts. They are named by `where`, or by `name` and their row."""

    texts: Sequence[Text]
    name: str
    where: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int, /) -> Sample:
        """Return the text or pair with its name."""
        name = f"{self.name} row {row}" if self.where is None else self.where[row]
        return Sample(self.texts[row], name)


def check_texts(rows: TextRows) -> TextRows:
    """Return the rows. Raises `BadData` that names the first empty text."""
    empty = list(_find_empty(rows.texts))
    if not empty:
        return rows
    more = f" ({len(empty)} of {len(rows)} are)" if len(empty) > 1 else ""
    raise BadData(f"{_name_empty(rows[empty[0]])} is empty{more}; write a text or remove it")


def _name_empty(sample: Sample) -> str:
    """Return the name of a row, and of a pair which of its texts is empty."""
    if isinstance(sample.image, str):
        return sample.where
    which = "second" if sample.image[0].strip() else "first"
    return f"{sample.where}: the {which} text of the pair"


def _find_empty(texts: Iterable[Text]) -> Iterator[int]:
    for row, text in enumerate(texts):
        parts = text if isinstance(text, tuple) else (text,)
        if not all(part.strip() for part in parts):
            yield row


def decode_text(data: bytes, where: str) -> str:
    """Return text in UTF-8, without a byte order mark. Raises `BadData` for another encoding."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise BadData(
                f"{where} is not text in UTF-8 but in UTF-16, by its byte order mark; save it as "
                "UTF-8, for example: iconv -f utf-16 -t utf-8"
            ) from None
        raise BadData(
            f"{where} is not text in UTF-8 (byte {error.start}); convert it, for example: iconv -f "
            "latin1 -t utf-8"
        ) from None
