"""Small faults drawn by chance from all of the code: the operators, and which lines they are drawn
from.

Each line of code is as likely as any other; of a line's possible changes each is as likely as any
other. A line's place in the draw is a checksum of the seed, the file's name and the line's text, so
that a seed and a tree always give the same list, the first 60 of 150 are the draw of 60,
and an edit of one file moves no other file's lines.

Changes by the node of the syntax tree:

    comparison      < <= and > >= exchanged, == !=, is, in: negated
    arithmetic      + - and * / exchanged, // to /, % to *, ** to *, & | exchanged, also in +=
    constant        a number one more or one less (a fraction doubled or halved), True and False
                    exchanged, a word of data changed
    logic           and or exchanged, an operand left out, not left out, a minus left out
    condition       of if, while, a comprehension or an expression: negated
    statement       a call, raise, assert, del, +=, or an assignment to an attribute or item: left
                    out; break and continue exchanged
    return          None instead of the value
    call            two neighbouring arguments exchanged, an argument given by name left out, min
                    max, any all, floor ceil, argmin argmax, startswith endswith, lstrip rstrip
                    exchanged
    slice           a bound one more or one less

Left out, because tests do not check them: imports, annotations, docstrings, `__all__`, `if
TYPE_CHECKING`, `if __name__ == "__main__"`, texts for people (a string with a space in it, or
anything in a `raise` but the raise itself), and f-strings (Python 3.11 does not give the positions
of the expressions in them).
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
PAIRS = (
    ("min", "max"),
    ("any", "all"),
    ("floor", "ceil"),
    ("argmin", "argmax"),
    ("startswith", "endswith"),
    ("lstrip", "rstrip"),
)
NAMES = {**dict(PAIRS), **{second: first for first, second in PAIRS}}


@dataclass(frozen=True)
class Change:
    """The bytes from `start` to `end` of a file's text become `new`; `line` counts from 1."""

    start: int
    end: int
    new: str
    line: int


class Text:
    """The bytes of a source, its syntax tree and the positions of its nodes."""

    def __init__(self, text: str) -> None:
        self.bytes = text.encode()
        self.tree = ast.parse(text)
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """Return the byte at which a node begins."""
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """Return the byte after a node."""
        return self.starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def read(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        """Return a node's text."""
        return self.bytes[self.start(node) : self.end(node)].decode()

    def find_line(self, position: int) -> int:
        """Return the line, from 1, of a byte."""
        return self.bytes.count(b"\n", 0, position) + 1

    def replace(self, start: int, end: int, new: str) -> Change:
        """Return the change of some bytes."""
        return Change(start, end, new, self.find_line(start))

    def replace_between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Change | None:
        """Return the change of the operator between two nodes; None if it is not found."""
        start = self.bytes.find(old.encode(), self.end(left), self.start(right))
        return None if start < 0 else self.replace(start, start + len(old), new)

    def apply(self, change: Change) -> str:
        """Return the text with a change."""
        new = self.bytes[: change.start] + change.new.encode() + self.bytes[change.end :]
        return new.decode()


def list_changes(text: str) -> list[Change]:
    """Return the changes of a source, some of which may not be valid Python."""
    source = Text(text)
    return list(dict.fromkeys(_visit(source, source.tree)))


def is_fault(text: str, change: Change) -> bool:
    """Return whether a change of a source gives valid Python that is not the same program."""
    source = Text(text)
    changed = source.apply(change)
    try:
        compile(changed, "mutant", "exec")
        return ast.dump(ast.parse(changed)) != ast.dump(source.tree)
    except (SyntaxError, ValueError):
        return False


def _visit(source: Text, node: ast.AST) -> Iterator[Change]:
    """Yield the changes of a node and of its children."""
    if _is_left_out(node):
        return
    if isinstance(node, ast.stmt):
        yield from _change_statement(source, node)
    if isinstance(node, ast.expr):
        yield from _change_expression(source, node)
    yield from _change_condition(source, node)
    if isinstance(node, ast.Raise):
        return
    for child in _list_children(node):
        yield from _visit(source, child)


def _is_left_out(node: ast.AST) -> bool:
    """Return whether a node is not changed."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
    return False


def _list_children(node: ast.AST) -> list[ast.AST]:
    """Return a node's parts without annotations."""
    left_out = {"annotation", "returns", "type_comment"}
    children: list[ast.AST] = []
    for name, value in ast.iter_fields(node):
        if name not in left_out:
            values = value if isinstance(value, list) else [value]
            children += [child for child in values if isinstance(child, ast.AST)]
    return children


def _change_statement(source: Text, node: ast.stmt) -> Iterator[Change]:
    """Yield the changes of a statement itself."""
    start, end = source.start(node), source.end(node)
    match node:
        case ast.Expr() | ast.Raise() | ast.Assert() | ast.Delete():
            yield source.replace(start, end, "pass")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield source.replace(start, end, "pass")
        case ast.AugAssign(target=target, op=op, value=value):
            yield source.replace(start, end, "pass")
            if type(op) in ARITHMETIC:
                old, new = ARITHMETIC[type(op)]
                if change := source.replace_between(target, value, f"{old}=", f"{new}="):
                    yield change
        case ast.Break():
            yield source.replace(start, end, "continue")
        case ast.Continue():
            yield source.replace(start, end, "break")
        case ast.Return(value=ast.expr() as value):
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield source.replace(start, end, "return None")
        case ast.Return():
            yield source.replace(start, end, "pass")


def _change_condition(source: Text, node: ast.AST) -> Iterator[Change]:
    """Yield the negated conditions of a node."""
    tests: list[ast.expr] = []
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            tests = [test]
        case ast.comprehension(ifs=ifs):
            tests = ifs
    for test in tests:
        if not isinstance(test, ast.UnaryOp | ast.Constant):
            new = f"not ({source.read(test)})"
            yield source.replace(source.start(test), source.end(test), new)


def _change_expression(source: Text, node: ast.expr) -> Iterator[Change]:
    """Yield the changes of an expression itself."""
    start, end = source.start(node), source.end(node)
    match node:
        case ast.Constant(value=value):
            for new in _change_constant(value):
                yield source.replace(start, end, new)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            yield from _change_comparison(source, [left, *comparators], ops)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            if change := source.replace_between(left, right, *ARITHMETIC[type(op)]):
                yield change
        case ast.BoolOp():
            yield from _change_logic(source, node)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield source.replace(start, end, f"({source.read(operand)})")
        case ast.Call():
            yield from _change_call(source, node)
        case ast.Name(id=name) if name in NAMES:
            yield source.replace(start, end, NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield source.replace(end - len(name), end, NAMES[name])
        case ast.Slice(lower=lower, upper=upper):
            for bound in (lower, upper):
                if bound is not None and not isinstance(bound, ast.Constant | ast.UnaryOp):
                    for step in ("+ 1", "- 1"):
                        new = f"({source.read(bound)}) {step}"
                        yield source.replace(source.start(bound), source.end(bound), new)


def _change_constant(value: object) -> list[str]:
    """Return the replacements of a constant."""
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int):
        return [str(value + 1), f"({value - 1})" if value < 1 else str(value - 1)]
    if isinstance(value, float):
        return [repr(value * 2), repr(value / 2)] if value else ["1.0"]
    if isinstance(value, str) and " " not in value.strip() and "\n" not in value:
        return [repr(f"{value}x"), repr(value[1:])] if value else ["'x'"]
    return []


def _change_comparison(
    source: Text, values: Sequence[ast.expr], ops: Sequence[ast.cmpop]
) -> Iterator[Change]:
    """Yield the changes of the operators of a comparison."""
    for left, op, right in zip(values, ops, values[1:]):
        old, replacements = COMPARISONS[type(op)]
        for new in replacements:
            if change := source.replace_between(left, right, old, new):
                yield change


def _change_logic(source: Text, node: ast.BoolOp) -> Iterator[Change]:
    """Yield the changes of an `and` or `or`."""
    old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for index, (left, right) in enumerate(zip(node.values, node.values[1:])):
        if change := source.replace_between(left, right, old, new):
            yield change
        if index == 0:
            yield source.replace(source.start(left), source.start(right), "")
        yield source.replace(source.end(left), source.end(right), "")


def _change_call(source: Text, node: ast.Call) -> Iterator[Change]:
    """Yield the changes of the arguments of a call."""
    for left, right in zip(node.args, node.args[1:]):
        texts = source.read(left), source.read(right)
        starred = isinstance(left, ast.Starred) or isinstance(right, ast.Starred)
        if texts[0] != texts[1] and not starred:
            between = source.bytes[source.end(left) : source.start(right)].decode()
            new = f"{texts[1]}{between}{texts[0]}"
            yield source.replace(source.start(left), source.end(right), new)
    for keyword in node.keywords:
        if keyword.arg:
            start, end = source.start(keyword), source.end(keyword)
            rest = source.bytes[end:]
            comma = len(rest) - len(rest.lstrip())
            if rest.lstrip().startswith(b","):
                end += comma + 1
            yield source.replace(start, end, "")


def widen_change(text: str, change: Change) -> tuple[str, str]:
    """Return the lines around a change that occur once in the text, and their replacement."""
    source = Text(text)
    lines = source.bytes.splitlines(keepends=True)
    first, last = change.line - 1, source.find_line(max(change.start, change.end - 1)) - 1
    while True:
        start, end = source.starts[first], source.starts[last + 1]
        old = source.bytes[start:end]
        if source.bytes.count(old) == 1:
            new = source.bytes[start : change.start] + change.new.encode()
            new += source.bytes[change.end : end]
            return old.decode(), new.decode()
        first, last = max(first - 1, 0), min(last + 1, len(lines) - 1)


def read_lines(text: str, change: Change) -> tuple[str, str]:
    """Return the lines of a change, without their margins, and their replacement."""
    source = Text(text)
    last = source.find_line(max(change.start, change.end - 1))
    start, end = source.starts[change.line - 1], source.starts[last]
    new = source.bytes[start : change.start] + change.new.encode() + source.bytes[change.end : end]
    return source.bytes[start:end].decode().strip(), new.decode().strip()


def compute_order_key(*parts: object) -> str:
    """Return a checksum of the parts, by which things are sorted in a random order."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def draw_changes(texts: dict[str, str], count: int, seed: int) -> list[tuple[str, Change]]:
    """Return `count` changes of sources given by name, each of another line, as files with changes.

    Every line that has a change is as likely as any other.
    """
    lines: list[tuple[str, str, list[Change]]] = []
    for file, text in texts.items():
        split = text.split("\n")
        by_line: dict[int, list[Change]] = {}
        for change in list_changes(text):
            by_line.setdefault(change.line, []).append(change)
        occurrences: dict[str, int] = {}
        for line, changes in sorted(by_line.items()):
            words = split[line - 1].strip()
            occurrences[words] = occurrences.get(words, 0) + 1
            lines.append((compute_order_key(seed, file, words, occurrences[words]), file, changes))
    drawn_changes: list[tuple[str, Change]] = []
    for order_key, file, changes in sorted(lines, key=lambda line: line[:2]):
        if len(drawn_changes) == count:
            break
        first = min(change.start for change in changes)
        changes.sort(
            key=lambda change: compute_order_key(
                order_key, change.new, change.start - first, change.end - first
            )
        )
        drawn_changes += [(file, change) for change in changes if is_fault(texts[file], change)][:1]
    return drawn_changes
