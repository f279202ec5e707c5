"""An unpickler that builds plain data and nothing else.

A pickle is a program, and Python's unpickler imports and calls whatever the program names. This
subclass keeps the instructions that make numbers, text, bytes, tuples, lists and dictionaries.
Names to import must be in a table of the caller; calls go to functions in that table, which get
plain data.
"""

import pickle
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from learngene_zoo.plugin import BadFile

MAX_STEPS = 2_000_000  # the largest hypernetwork's checkpoint with its optimiser takes about 50,000
_MAX_LINE = 256
# By full name; None: may be imported, but not called.
Calls = Mapping[str, "Callable[..., Any] | None"]


class Cursor:
    """Bytes in memory, read from front to back. Raises `BadFile` at the end."""

    def __init__(self, data: memoryview, source: str) -> None:
        self.data, self.source, self.position = data, source, 0

    @property
    def num_remaining(self) -> int:
        """Return the number of bytes that were not read yet."""
        return len(self.data) - self.position

    def take(self, count: int) -> memoryview:
        """Return the next bytes, without a copy."""
        if count > self.num_remaining:
            raise BadFile(
                f"{self.source} is truncated: expected {count} more bytes, got {self.num_remaining}"
            )
        self.position += count
        return self.data[self.position - count : self.position]

    def read_number(self, form: str) -> Any:
        """Return the next number, in a format of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def read(self, count: int) -> bytes | memoryview:
        """Return the next bytes as the unpickler reads them, more than one without a copy."""
        data = self.take(count)
        return bytes(data) if count == 1 else data

    def readline(self) -> bytes:
        """Return the bytes up to the next newline, with it."""
        near = bytes(self.data[self.position : self.position + _MAX_LINE])
        end = near.find(b"\n")
        if end < 0:
            raise BadFile(
                f"{self.source} contains a name of more than {_MAX_LINE} characters; it is not a "
                "checkpoint"
            )
        self.position += end + 1
        return near[: end + 1]


@dataclass(frozen=True)
class Name:
    """A name that a pickle imports. It stands for the object."""

    text: str


class StandIn(ABC):
    """The result of a call that the pickle may still set the state of (its BUILD instruction)."""

    @abstractmethod
    def set_state(self, state: Any, cursor: Cursor) -> Any:
        """Return the object that replaces this one. Raises `BadFile`.

        Bytes that belong to it may be read from the cursor.
        """


def unpickle(cursor: Cursor, calls: Calls, persistent: Callable[[Any], Any] | None = None) -> Any:
    """Return the value of the pickle at the cursor, which is moved behind it.

    Args:
        cursor: the bytes, which byte strings of the value are slices of.
        calls: the functions that the pickle may call; they may raise `ValueError`.
        persistent: resolves references to data outside the pickle.

    Raises:
        BadFile: for everything that this unpickler cannot do.
    """
    try:
        return PlainUnpickler(cursor, calls, persistent).load()
    except ValueError as error:  # by a call, or by decoding text
        raise BadFile(
            f"{cursor.source} is damaged or not a checkpoint of a hypernetwork: {error}"
        ) from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        pickle.UnpicklingError,
        struct.error,
    ) as error:
        raise BadFile(
            f"{cursor.source} is damaged: {error!r}; fetch it or save it again"
        ) from error


class PlainUnpickler(pickle._Unpickler):
    """The standard library's unpickler in Python, with the instructions of `_INSTRUCTIONS` only.

    The one in C cannot be used: it reads ahead, but in joblib's files the bytes of an array follow
    the instruction that builds it; and it hashes any key, of which deeply nested tuples crash the
    process.
    """

    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(
        self, cursor: Cursor, calls: Calls, persistent: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(cursor)  # type: ignore[arg-type]  # slices of memory, not bytes
        self.cursor, self.calls, self.persistent = cursor, calls, persistent
        self.dispatch = _Dispatch(self)  # type: ignore[misc, assignment]

    def refuse(self, reason: str) -> Any:
        """Raise `BadFile` with a reason."""
        raise BadFile(
            f"{self.cursor.source} {reason}, which a checkpoint of a hypernetwork does not need; "
            "it was not read further"
        )

    def find_class(self, module: str, name: str) -> Name:
        """Return a name of the table of calls; nothing is imported."""
        text = f"{module}.{name}"
        if text not in self.calls:
            self.refuse(f"imports {text!r:.80}")
        return Name(text)

    def persistent_load(self, reference: Any) -> Any:
        """Return the data outside the pickle that it refers to."""
        if self.persistent is None:
            self.refuse("refers to data outside the pickle")
            return None
        return self.persistent(reference)

    def load_proto(self) -> None:
        """Check the protocol's number."""
        version = self.cursor.read_number("<B")
        if not 2 <= version <= 5:
            self.refuse(f"uses pickle protocol {version}")

    def load_frame(self) -> None:
        """Skip the hint for reading ahead."""
        self.cursor.read_number("<Q")

    def append_items(self, items: list[Any]) -> None:
        """Append to the list on the stack."""
        if type(self.stack[-1]) is not list:
            self.refuse("appends to something that is not a list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        """Add keys and values to the dictionary on the stack."""
        target = self.stack[-1]
        # Keys of other types may be nested so deeply that hashing them crashes the process.
        if (
            type(target) is not dict
            or len(items) % 2
            or any(type(key) not in (str, int) for key in items[::2])
        ):
            self.refuse("sets an item with a key that is neither text nor a number")
        target.update(zip(items[::2], items[1::2]))

    def pop(self, count: int) -> list[Any]:
        """Return the topmost items of the stack, in order, and remove them."""
        if count > len(self.stack):
            raise IndexError("the stack is empty")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def call(self) -> None:
        """Call a function of the table."""
        name, arguments = self.pop(2)
        function = self.calls[name.text] if type(name) is Name else None
        if function is None or type(arguments) is not tuple:
            self.refuse(f"calls {name.text if type(name) is Name else type(name).__name__}")
            return
        self.append(function(*arguments))

    def set_state(self) -> None:
        """Set the state of a stand-in."""
        target, state = self.pop(2)
        if isinstance(target, StandIn):
            self.append(target.set_state(state, self.cursor))
        elif type(target) is dict:  # torch stores version numbers in its ordered dictionaries
            self.append(target)
        else:
            self.refuse(f"changes a {type(target).__name__}")


class _Dispatch:
    """The method of each instruction, as `pickle._Unpickler.load` looks it up."""

    def __init__(self, unpickler: PlainUnpickler) -> None:
        self.unpickler, self.steps = unpickler, 0

    def __getitem__(self, code: int) -> Callable[[PlainUnpickler], None]:
        self.steps += 1
        if self.steps > MAX_STEPS:
            self.unpickler.refuse(f"takes more than {MAX_STEPS} instructions")
        if code not in _INSTRUCTIONS:
            self.unpickler.refuse(f"holds the instruction {bytes([code])!r}")
        return _INSTRUCTIONS[code]


_STANDARD = (
    "STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE "
    "BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 EMPTY_TUPLE EMPTY_LIST EMPTY_DICT "
    "TUPLE TUPLE1 TUPLE2 TUPLE3 MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL STACK_GLOBAL "
    "BINPERSID"
)
_INSTRUCTIONS: dict[int, Callable[[Any], None]] = {
    **{
        code: pickle._Unpickler.dispatch[code]
        for code in (getattr(pickle, name)[0] for name in _STANDARD.split())
    },
    pickle.PROTO[0]: PlainUnpickler.load_proto,
    pickle.FRAME[0]: PlainUnpickler.load_frame,
    pickle.APPEND[0]: lambda unpickler: unpickler.append_items(unpickler.pop(1)),
    pickle.APPENDS[0]: lambda unpickler: unpickler.append_items(unpickler.pop_mark()),
    pickle.SETITEM[0]: lambda unpickler: unpickler.set_items(unpickler.pop(2)),
    pickle.SETITEMS[0]: lambda unpickler: unpickler.set_items(unpickler.pop_mark()),
    pickle.REDUCE[0]: PlainUnpickler.call,
    pickle.NEWOBJ[0]: PlainUnpickler.call,
    pickle.BUILD[0]: PlainUnpickler.set_state,
}
