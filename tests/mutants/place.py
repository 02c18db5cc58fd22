"""Finding the place of a mutant in the code: by its names and its syntax, never by its file or its lines."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.listed import Mutant

ROOT = Path(__file__).parents[2]
ROOMS = ("kernels", "models", "data", "training", "eval", "results", "analysis", "experiments", "slurm")
NODES = (ast.expr, ast.stmt, ast.keyword)


@dataclass(frozen=True)
class Place:
    """A stretch of a file, in bytes."""

    file: str
    start: int
    end: int

    def changed(self, text: str, new: str) -> str:
        """Return the file's text with `new` in this place."""
        whole = text.encode()
        return (whole[: self.start] + new.encode() + whole[self.end :]).decode()


def parsed(text: str) -> ast.AST:
    """Parse an expression, a keyword argument or a statement."""
    (statement,) = ast.parse(text).body
    if isinstance(statement, ast.Expr):
        return statement.value
    if isinstance(statement, ast.Assign) and text == ast.unparse(statement).replace(" = ", "="):  # as arguments are written
        return ast.parse(f"f({text})", mode="eval").body.keywords[0]  # type: ignore[attr-defined]
    return statement


def named(node: ast.AST, above: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Functions, classes and constants below a node, by qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield above + child.name, child
            yield from named(child, f"{above}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign) and isinstance(node, ast.Module | ast.ClassDef):
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            yield above + ast.unparse(target), child
        elif isinstance(child, ast.stmt):
            yield from named(child, above)


class Code:
    """All names of the code below a folder."""

    def __init__(self, root: Path = ROOT):
        self.names: dict[str, list[tuple[str, ast.AST]]] = {}
        self.texts: dict[str, str] = {}
        for path in (path for room in ROOMS for path in sorted((root / room).rglob("*.py"))):
            file = str(path.relative_to(root))
            self.texts[file] = path.read_text()
            for name, node in named(ast.parse(self.texts[file])):
                self.names.setdefault(name, []).append((file, node))

    def places(self, mutant: Mutant) -> list[Place]:
        """All places that a mutant means, which should be one."""
        wanted = ast.dump(parsed(mutant.old))
        return [
            self._place(file, node)
            for file, scope in self.names.get(mutant.name, [])
            for node in ast.walk(scope)
            if isinstance(node, NODES) and ast.dump(node) == wanted
        ]

    def _place(self, file: str, node: ast.expr | ast.stmt | ast.keyword) -> Place:
        assert node.end_lineno is not None and node.end_col_offset is not None
        lines = self.texts[file].encode().splitlines(keepends=True)
        before = [sum(map(len, lines[: number - 1])) for number in (node.lineno, node.end_lineno)]
        return Place(file, before[0] + node.col_offset, before[1] + node.end_col_offset)


def replacement(mutant: Mutant) -> str:
    """Return what a mutant puts into its place; an expression in parentheses, so that it stays one."""
    return f"({mutant.new})" if isinstance(parsed(mutant.old), ast.expr) else mutant.new


def files_of_tests(mutant: Mutant) -> list[str]:
    """Return the files of its tests. ValueError for a name that no file has, or several."""
    found = []
    for name in mutant.tests.partition(" -k ")[0].split():
        files = [path for path in (ROOT / "tests").rglob("test_*.py") if f"/{path.relative_to(ROOT)}".endswith(f"/{name}.py")]
        if len(files) != 1:
            raise ValueError(f"{name}: tests/ has {len(files)} files of this name; give its folder, too.")
        found.append(str(files[0].relative_to(ROOT)))
    return found
