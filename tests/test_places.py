"""Additions that CONTRIBUTING.md describes, made in a copy of the code: the files counted, and everything run."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkout import ROOT, copy_code
from tests.texts import write_texts

pytestmark = pytest.mark.long
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
NEW = ROOT / "tests" / "places"
ATTENTION = "kernels/forgetting_attention"
OPTIONS = "tests/kernels/forgetting_attention/test_forgetting_attention.py"


@dataclass(frozen=True)
class Example:
    """`title`: as in the page's table. `names`: what stands for the table's capitals. `new`: a folder of tests/places, laid out
    as in the tree. `edits`: file, a text that it has once, what stands there afterwards ("..." is the text)."""

    title: str
    edits: tuple[tuple[str, str, str], ...] = ()
    new: str | None = None
    names: tuple[tuple[str, str], ...] = ()

    def add(self, root: Path) -> None:
        if self.new is not None:
            shutil.copytree(NEW / self.new, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        for file, old, edited in self.edits:
            text = (root / file).read_text()
            assert text.count(old) == 1, (file, old)
            (root / file).write_text(text.replace(old, edited.replace("...", old)))


LAYER = Example(
    "a layer of flash-linear-attention",
    new="layer",
    names=(("NAME", "simple_gla"),),
    edits=(
        (
            "kernels/fla_cpu/install.py",
            '    ("fla.layers.delta_net", "chunk_delta_rule"',
            """\
    ("fla.layers.simple_gla", "chunk_simple_gla", recurrences.simple_gla),
    ("fla.layers.simple_gla", "fused_recurrent_simple_gla", recurrences.simple_gla),
...""",
        ),
        (
            "kernels/fla_cpu/recurrences.py",
            "def l2norm(",
            '''\
def simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **given: Any) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention with one log gate per head, g (B, T, H)."""
    return chunk_gla(q, k, v, g.unsqueeze(-1).expand_as(k), **given)


...''',
        ),
    ),
)
EVALUATION = Example(
    "an evaluation",
    new="evaluation",
    names=(("NAME", "last_loss"),),
)
FIGURE = Example("a figure or table", new="figure", names=(("PAPER", "fox"), ("STEM", "last_losses")))
SCALE = Example(
    "a scale",
    edits=(
        (
            "experiments/scales.py",
            "        MINI, MINI_SHORT, ",
            """\
        replace(
            TINY_NARROW, name="made-up", about="some seconds a training", seq_len=128, batch_tokens=256,
            train_tokens=256 * 30, warmup_tokens=256 * 5, heldout_documents=8,
        ),  # fmt: skip
...""",
        ),
        ("experiments/scales.py", "ABLATIONS = {", '...("made-up",): "made-up", '),
    ),
)
GATE = Example(
    "a forget gate",
    edits=(
        ("models/forgetting_transformer/spec.py", 'Literal["full", ', '..."shared", '),
        ("models/forgetting_transformer/spec.py", 'gate = {"full": heads * (d + 1), ', '..."shared": d + 1, '),
        (
            "models/forgetting_transformer/module.py",
            '        elif spec.forget_gate == "bias_only":\n            self.fgate_bias',
            """\
        elif spec.forget_gate == "shared":
            self.fgate_proj = nn.Linear(d, 1, bias=True)
...""",
        ),
        (
            "experiments/fox/fig7_gate_types.py",
            'GATES = {"full": "data-dependent", ',
            '..."shared": "the same for all heads", ',
        ),
        ("experiments/fox/fig7_gate_types.py", "SIZES = {", '...("made-up",): (4, 32), '),
    ),
)
OPTION = Example(
    "a kernel option",
    edits=(
        (
            f"{ATTENTION}/interface.py",
            "    scale: float | None = None,\n",
            "...    logit_cap: float | None = None,\n",
        ),
        (
            f"{ATTENTION}/interface.py",
            "    backend = pick_backend(backend, q)\n",
            """\
...    if logit_cap is not None and backend != "reference":
        raise ValueError(f"logit_cap is {logit_cap}; backend {backend!r} has none. Use 'reference'.")
""",
        ),
        (f"{ATTENTION}/interface.py", "v, log_fgate, scale=scale, ", "...logit_cap=logit_cap, "),
        (f"{ATTENTION}/reference.py", "    scale: float | None = None,\n", "...    logit_cap: float | None = None,\n"),
        (
            f"{ATTENTION}/reference.py",
            "    logits_BHQT = (q_BHQD @ k_BHTD.transpose(-1, -2)).to(softmax_dtype) * scale + decay_BHQT\n",
            """\
    logits_BHQT = (q_BHQD @ k_BHTD.transpose(-1, -2)).to(softmax_dtype) * scale
    if logit_cap is not None:
        logits_BHQT = logit_cap * torch.tanh(logits_BHQT / logit_cap)
    logits_BHQT = logits_BHQT + decay_BHQT
""",
        ),
        (OPTIONS, '    {"scale": 0.3},\n', '...    {"logit_cap": 1.0},\n'),
    ),
)
EXAMPLES = (LAYER, EVALUATION, FIGURE, SCALE, GATE, OPTION)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, set[str]]]:
    """Return a copy of the code with every example in it, and the files that each of them touched."""
    root = copy_code(tmp_path_factory.mktemp("places") / "checkout")
    for name in ("models", "kernels"):
        shutil.copytree(ROOT / "tests" / name, root / "tests" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "pyproject.toml", root / "pyproject.toml")
    touched, before = {}, contents(root)
    for example in EXAMPLES:
        example.add(root)
        after = contents(root)
        touched[example.title] = {path for path, text in after.items() if before.get(path) != text}
        before = after
    return root, touched


def test_the_page_names_the_files_that_each_addition_touches(added):
    rows = dict(re.findall(r"^\| (an? [^|]+?) \| ([^|]+?) \|$", PAGE, re.MULTILINE))
    assert rows.keys() == {example.title for example in EXAMPLES}
    for example in EXAMPLES:
        files = rows[example.title]
        for capitals, name in example.names:
            files = files.replace(capitals, name)
        assert set(re.findall(r"`([^`]+)`", files)) == added[1][example.title], example.title


def test_the_code_on_the_page_is_the_code_that_is_tried(added):
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert {file for file, _ in blocks} >= {file for example in EXAMPLES for file, _, _ in example.edits} - {OPTIONS}
    for file, block in blocks:
        there = {line.strip() for line in (added[0] / file).read_text().splitlines()}
        absent = [line for line in block.splitlines() if line.strip() not in there | {"", "..."}]
        assert not absent, (file, absent)


def test_what_was_added_is_tested_trained_evaluated_and_drawn(added, tmp_path):
    def run(*words: str) -> None:
        done = subprocess.run([sys.executable, "-m", *words], cwd=added[0], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    run("ruff", "check", *(path for files in added[1].values() for path in files))
    run("pytest", "-n", "0", "tests/models/test_models.py", OPTIONS, "-k", "simple_gla or shared or heeded")
    texts = write_texts(tmp_path / "texts", documents=36)
    stems = ("last_losses", "fig7_gate_types")
    lines = [word for label in ("fox_llama", "simple*", "data-dependent", "the same*") for word in ("--line", label)]
    at = ("--scale", "made-up", "--data", f"text:{texts}", "--results-dir", str(tmp_path / "results"))
    run("experiments", "run", *stems, *at, "--also", "simple_gla", *lines)
    figures = tmp_path / "results" / "made-up" / "figures"
    assert "simple_gla" in (figures / "last_losses.csv").read_text()
    assert "the same for all heads" in (figures / "fig7_gate_types.csv").read_text()
