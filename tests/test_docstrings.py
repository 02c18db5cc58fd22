"""Docstrings begin with a verb or a noun and stand without the signature."""

import ast
import re
from itertools import pairwise
from pathlib import Path

from tests.test_imports import MAY_IMPORT

ROOT = Path(__file__).parent.parent
CLAUSE = re.compile(r"(What|Of|How|Whether|Which|Where|Who|When|That)\b")


def test_docstrings_are_no_clauses_cut_from_a_sentence():
    found = []
    for path in sorted(path for room in [*MAY_IMPORT, "tests"] for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for before, after in pairwise(getattr(node, "body", [])) if isinstance(node, (ast.Module, ast.ClassDef)) else ():
                words = getattr(getattr(after, "value", None), "value", None) if isinstance(after, ast.Expr) else None
                if isinstance(before, (ast.Assign, ast.AnnAssign)) and CLAUSE.match(str(words)):
                    found.append(f"{path.relative_to(ROOT)}:{after.lineno}: {words}")
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and CLAUSE.match(ast.get_docstring(node) or ""):
                found.append(f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}: {ast.get_docstring(node)[:60]}")
    assert not found, "\n".join(found)
