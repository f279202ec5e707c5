"""A machine for pickles that builds plain data and nothing else.

A pickle is a program for a stack machine, and Python's own machine imports and calls whatever the
program names. This one has the instructions that make numbers, text, bytes, tuples, lists and
dictionaries. Names to import must be in a table of the caller and become inert `Name`s; calls go to
functions in that table, which get plain data.
"""

import pickle  # only for the names of its instructions
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
    def remaining(self) -> int:
        """Return the number of bytes that were not read yet."""
        return len(self.data) - self.position

    def take(self, count: int) -> memoryview:
        """Return the next bytes, without a copy."""
        if count > self.remaining:
            raise BadFile(
                f"{self.source} is truncated: expected {count} more bytes, got {self.remaining}"
            )
        self.position += count
        return self.data[self.position - count : self.position]

    def read_number(self, form: str) -> Any:
        """Return the next number, in a format of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def read_text(self, form: str) -> str:
        """Return UTF-8 text, which follows its number of bytes."""
        return bytes(self.take(self.read_number(form))).decode()

    def read_line(self) -> str:
        """Return the text up to the next newline, which is read too."""
        near = bytes(self.data[self.position : self.position + _MAX_LINE])
        end = near.find(b"\n")
        if end < 0:
            raise BadFile(
                f"{self.source} contains a name of more than {_MAX_LINE} characters; it is not a "
                "checkpoint"
            )
        self.position += end + 1
        return near[:end].decode()


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
        BadFile: for everything that this machine cannot do.
    """
    try:
        return _Machine(cursor, calls, persistent).run()
    except ValueError as error:  # by a call, or by decoding text
        raise BadFile(
            f"{cursor.source} is damaged or not a checkpoint of a hypernetwork: {error}"
        ) from error
    except (IndexError, KeyError, TypeError, OverflowError, RecursionError, struct.error) as error:
        raise BadFile(
            f"{cursor.source} is damaged: {error!r}; fetch it or save it again"
        ) from error


class _Machine:
    def __init__(
        self, cursor: Cursor, calls: Calls, persistent: Callable[[Any], Any] | None
    ) -> None:
        self.cursor, self.calls, self.persistent = cursor, calls, persistent
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under each mark
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(MAX_STEPS):
            code = bytes(self.cursor.take(1))
            if code == pickle.STOP:
                return self.stack.pop()
            if code in _PUSH:
                self.stack.append(_PUSH[code](self.cursor))
            elif code in _DO:
                _DO[code](self)
            else:
                self.refuse(f"holds the instruction {code!r}")
        return self.refuse(f"takes more than {MAX_STEPS} instructions")

    def refuse(self, reason: str) -> Any:
        raise BadFile(
            f"{self.cursor.source} {reason}, which a checkpoint of a hypernetwork does not need; "
            "it was not read further"
        )

    def pop_to_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def pop(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack):
            raise IndexError("the stack is empty")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def push_mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def push_tuple(self) -> None:
        items = tuple(self.pop_to_mark())  # which replaces the stack
        self.stack.append(items)

    def append_items(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            self.refuse("appends to something that is not a list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        # Keys of other types may be nested so deeply that hashing them crashes the process.
        if (
            type(target) is not dict
            or len(items) % 2
            or any(type(key) not in (str, int) for key in items[::2])
        ):
            self.refuse("sets an item with a key that is neither text nor a number")
        target.update(zip(items[::2], items[1::2]))

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def recall(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def push_name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise ValueError("it imports something without a name")
        text = f"{module}.{name}"
        if text not in self.calls:
            self.refuse(f"imports {text!r:.80}")
        self.stack.append(Name(text))

    def call(self) -> None:
        name, arguments = self.pop(2)
        function = self.calls[name.text] if type(name) is Name else None
        if function is None or type(arguments) is not tuple:
            self.refuse(f"calls {name.text if type(name) is Name else type(name).__name__}")
            return
        self.stack.append(function(*arguments))

    def set_state(self) -> None:
        target, state = self.pop(2)
        if isinstance(target, StandIn):
            self.stack.append(target.set_state(state, self.cursor))
        elif (
            type(target) is dict
        ):  # torch stores version numbers as an attribute of its ordered dictionaries
            self.stack.append(target)
        else:
            self.refuse(f"changes a {type(target).__name__}")

    def resolve_reference(self) -> None:
        if self.persistent is None:
            self.refuse("refers to data outside the pickle")
            return
        self.stack.append(self.persistent(self.stack.pop()))

    def check_protocol(self) -> None:
        version = self.cursor.read_number("<B")
        if not 2 <= version <= 5:
            self.refuse(f"uses pickle protocol {version}")


# Instructions that push a value onto the stack.
_PUSH: dict[bytes, Callable[[Cursor], Any]] = {
    pickle.NONE: lambda _: None,
    pickle.NEWTRUE: lambda _: True,
    pickle.NEWFALSE: lambda _: False,
    pickle.BININT: lambda cursor: cursor.read_number("<i"),
    pickle.BININT1: lambda cursor: cursor.read_number("<B"),
    pickle.BININT2: lambda cursor: cursor.read_number("<H"),
    pickle.LONG1: lambda cursor: int.from_bytes(
        cursor.take(cursor.read_number("<B")), "little", signed=True
    ),
    pickle.BINFLOAT: lambda cursor: cursor.read_number(">d"),
    pickle.SHORT_BINUNICODE: lambda cursor: cursor.read_text("<B"),
    pickle.BINUNICODE: lambda cursor: cursor.read_text("<I"),
    pickle.BINUNICODE8: lambda cursor: cursor.read_text("<Q"),
    pickle.SHORT_BINBYTES: lambda cursor: cursor.take(cursor.read_number("<B")),
    pickle.BINBYTES: lambda cursor: cursor.take(cursor.read_number("<I")),
    pickle.BINBYTES8: lambda cursor: cursor.take(cursor.read_number("<Q")),
    pickle.EMPTY_TUPLE: lambda _: (),
    pickle.EMPTY_LIST: lambda _: [],
    pickle.EMPTY_DICT: lambda _: {},
}

# All other instructions.
_DO: dict[bytes, Callable[[_Machine], None]] = {
    pickle.PROTO: _Machine.check_protocol,
    pickle.FRAME: lambda machine: machine.cursor.read_number("<Q"),  # a hint for reading ahead
    pickle.MARK: _Machine.push_mark,
    pickle.TUPLE: _Machine.push_tuple,
    pickle.TUPLE1: lambda machine: machine.stack.append(machine.pop(1)),
    pickle.TUPLE2: lambda machine: machine.stack.append(machine.pop(2)),
    pickle.TUPLE3: lambda machine: machine.stack.append(machine.pop(3)),
    pickle.APPEND: lambda machine: machine.append_items(list(machine.pop(1))),
    pickle.APPENDS: lambda machine: machine.append_items(machine.pop_to_mark()),
    pickle.SETITEM: lambda machine: machine.set_items(list(machine.pop(2))),
    pickle.SETITEMS: lambda machine: machine.set_items(machine.pop_to_mark()),
    pickle.MEMOIZE: lambda machine: machine.remember(len(machine.memo)),
    pickle.BINPUT: lambda machine: machine.remember(machine.cursor.read_number("<B")),
    pickle.LONG_BINPUT: lambda machine: machine.remember(machine.cursor.read_number("<I")),
    pickle.BINGET: lambda machine: machine.recall(machine.cursor.read_number("<B")),
    pickle.LONG_BINGET: lambda machine: machine.recall(machine.cursor.read_number("<I")),
    pickle.GLOBAL: lambda machine: machine.push_name(
        machine.cursor.read_line(), machine.cursor.read_line()
    ),
    pickle.STACK_GLOBAL: lambda machine: machine.push_name(*machine.pop(2)),
    pickle.REDUCE: _Machine.call,
    pickle.NEWOBJ: _Machine.call,
    pickle.BUILD: _Machine.set_state,
    pickle.BINPERSID: _Machine.resolve_reference,
}
