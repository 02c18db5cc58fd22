"""Every constant and every default of an argument once: the numbers, names and limits that the code rests on."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.place import ROOMS, ROOT

WRITTEN = Path(__file__).with_suffix(".txt")
LONGEST = 400
"""Characters of a value that is written down; what is longer is a table of its own."""
PLAIN = (
    ast.Constant, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow, ast.LShift,
    ast.Tuple, ast.List, ast.Set, ast.Name, ast.Attribute, ast.expr_context,
)  # fmt: skip
"""Syntax of values that are written down: numbers, words, and sums of these. Others grow with what is added to the suite."""
WORDS = 6
"""Words of a text that is written down; what has more is prose."""


def entries(name: str, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """A line for every entry of a dictionary, also where it is written dict(...), and for every word of a list of words."""
    pairs: list[tuple[str, ast.expr]] = []
    words = value.slice if isinstance(value, ast.Subscript) and ast.unparse(value.value) == "Literal" else value
    if isinstance(words, ast.Tuple | ast.List | ast.Set) and any(isinstance(getattr(x, "value", 0), str) for x in words.elts):
        yield from ((f"{name} has", word) for word in words.elts)
        return
    if isinstance(value, ast.Dict):
        pairs = [(ast.unparse(key) if key else "**", each) for key, each in zip(value.keys, value.values, strict=True)]
    elif isinstance(value, ast.Call):
        pairs = [(each.arg or "**", each.value) for each in value.keywords]
        pairs += [(str(place), each) for place, each in enumerate(value.args)]
    if not pairs:
        yield name, value
    for key, each in pairs:
        yield from entries(f"{name}[{key}]", each)


def constants(node: ast.AST, above: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Constants of modules and classes, and defaults of functions, by qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            given = [*child.args.posonlyargs, *child.args.args]
            defaults = [*zip(reversed(given), reversed(child.args.defaults), strict=False)]
            defaults += [pair for pair in zip(child.args.kwonlyargs, child.args.kw_defaults, strict=True) if pair[1]]
            yield from ((f"{above}{child.name}({argument.arg})", value) for argument, value in defaults)
            yield from constants(child, f"{above}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from constants(child, f"{above}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign | ast.AugAssign) and isinstance(node, ast.Module | ast.ClassDef):
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            if child.value is not None:
                yield from entries(above + ast.unparse(target), child.value)


def stated() -> list[str]:
    found = []
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        file = path.relative_to(ROOT)
        for name, value in constants(ast.parse(path.read_text())):
            parts = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant) and part.value is not None]
            if not all(isinstance(part, PLAIN) for part in ast.walk(value)):
                continue
            prose = any(isinstance(part, str) and len(part.split()) > WORDS for part in parts)
            if parts and not prose and len(text := ast.unparse(value)) <= LONGEST:
                found.append(f"{file} {name} = {text}")
    return found


def test_every_constant_is_the_one_that_is_written_down(tmp_path):
    """Lines that are new need not be there yet."""
    found = stated()
    (tmp_path / WRITTEN.name).write_text("\n".join(found) + "\n")
    changed = set(WRITTEN.read_text().splitlines()) - set(found)
    assert not changed, f"where that is meant: cp {tmp_path}/{WRITTEN.name} {WRITTEN}"
