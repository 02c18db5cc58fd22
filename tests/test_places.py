"""A new model, figure, evaluation or scale takes as few places as CONTRIBUTING.md says: tried in a copy of the code."""

import subprocess
import sys
from pathlib import Path

import pytest

from slurm.snapshot import code_files
from tests.checkout import ROOT, copy_code
from tests.texts import write_texts

MODEL_SPEC = '''
"""Running mean: every token is told the decayed mean of those before it."""

from typing import Literal

from pydantic.dataclasses import dataclass

from models.spec_parts import STRICT, ModelKind, PositiveInt, head_params, mlp_params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunningMeanSpec(ModelKind):
    kind: Literal["running_mean"] = "running_mean"
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    mlp_width: PositiveInt | None = None
    decay: float = 0.9
    norm_eps: float = 1e-6

    @property
    def num_params(self) -> int:
        layer = mlp_params(self.hidden_size, self.mlp_width or 128) + self.hidden_size**2
        return head_params(self.vocab_size, self.hidden_size) + self.num_layers * layer

    def flops_per_token(self, seq_len: int) -> int:
        return 2 * self.num_params

    def state_size(self, seq_len: int) -> int:
        return self.num_layers * self.hidden_size
'''
MODEL = '''
"""Running mean: the modules."""

import torch
from torch import nn

from models.backbone import Backbone, Block, linear_normal_


class Mixer(nn.Module):
    def __init__(self, spec, layer_idx):
        super().__init__()
        self.decay, self.layer_idx = spec.decay, layer_idx
        self.out = nn.Linear(spec.hidden_size, spec.hidden_size, bias=False)

    def forward(self, x, cache, padding):
        past = cache is not None and self.layer_idx in cache.layers
        mean = cache[self.layer_idx]["mean"] if past else torch.zeros_like(x[:, 0])
        means = []
        for token in x.unbind(1):
            mean = self.decay * mean + (1 - self.decay) * token
            means.append(mean)
        if cache is not None:
            cache.update(self.layer_idx, mean=mean)
        return self.out(torch.stack(means, 1))


class Model(Backbone):
    def __init__(self, spec):
        width = spec.mlp_width or 128
        mixers = [Mixer(spec, index) for index in range(spec.num_layers)]
        super().__init__(spec, [Block(mixer, spec.hidden_size, width, spec.norm_eps) for mixer in mixers])

    def init_module(self, module):
        linear_normal_(module, 0.02)
'''
EVALUATION_SPEC = '''
"""Loss of the last training step."""

from typing import Literal

from pydantic.dataclasses import dataclass

from eval.shell.spec import EvalSpec
from models.spec_parts import STRICT
from results.schema import Schema, number


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec(EvalSpec):
    """Loss of the last training step."""

    kind: Literal["last_loss"] = "last_loss"

    NEEDS = "metrics"
    SCHEMA = Schema({"loss": number(0)}, key=("loss",))

    def summary(self, rows):
        return [f"  {rows.loss[0]:.4f}"]
'''
EVALUATION_MEASURE = '''
"""Loss of the last training step."""

import pandas as pd


def evaluate(loaded, spec, context):
    return pd.DataFrame({"loss": [loaded.subject.run_folder.read_metrics()[-1]["loss"]]})
'''
FIGURE = '''
"""Figure 99: the last loss of a made-up model."""

from analysis.style import figure_style, plt, publish
from analysis.tables import Column, over_seeds
from eval.last_loss.spec import Spec
from experiments.recipes import recipes

TITLE, PAPER, SHOWS = "Last loss", "Figure 99", "One bar."


def runs(scale, seeds):
    yield from recipes(scale, "running_mean", seeds)


def evals(scale):
    return (Spec(),)


@figure_style()
def draw(study):
    rows = study.rows("last_loss")
    figure, axes = plt.subplots()
    axes.bar(rows["label"], rows["loss"])
    return publish(study, figure, rows)


def summary(study):
    rows = study.rows("last_loss")
    return over_seeds("Last loss", [Column("loss", "nats", 3)], {rows["label"][0]: [rows["loss"].to_numpy()]}, "")
'''
SCALE = 'SCALES["made-up"] = _replace(SCALES["pocket"], name="made-up", train_tokens=128 * 30)\n'


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Add a model (a folder, two lines), an evaluation (a folder, one line), a figure (one file) and a scale (one entry)."""
    root = copy_code(tmp_path / "checkout")
    folder = root / "models" / "running_mean"
    folder.mkdir()
    (folder / "spec.py").write_text(MODEL_SPEC.lstrip())
    (folder / "module.py").write_text(MODEL.lstrip())
    replace_in(
        root / "models" / "spec.py",
        "from models.samba.spec import SambaSpec",
        "from models.running_mean.spec import RunningMeanSpec\nfrom models.samba.spec import SambaSpec",
    )
    replace_in(
        root / "models" / "spec.py",
        "ForgettingTransformerSpec | Mamba2Spec",
        "RunningMeanSpec | ForgettingTransformerSpec | Mamba2Spec",
    )
    evaluation = root / "eval" / "last_loss"
    evaluation.mkdir()
    for name, text in (("__init__", ""), ("spec", EVALUATION_SPEC), ("measure", EVALUATION_MEASURE)):
        (evaluation / f"{name}.py").write_text(text.lstrip())
    replace_in(root / "eval" / "kinds.py", '    "training_curve",\n', '    "training_curve",\n    "last_loss",\n')
    (root / "experiments" / "fox" / "fig99_last_loss.py").write_text(FIGURE.lstrip())
    with open(root / "experiments" / "scales.py", "a") as file:
        file.write(SCALE)
    return root


def touched(root: Path) -> set[str]:
    """Return the files of a copy that are new or changed."""
    there = {path: (ROOT / path).read_bytes() for path in code_files(ROOT)}
    return {path for path in code_files(root) if (root / path).read_bytes() != there.get(path)}


def test_a_model_an_evaluation_a_figure_and_a_scale_are_added_where_contributing_says(checkout, tmp_path):
    assert touched(checkout) == {
        *("models/running_mean/spec.py", "models/running_mean/module.py", "models/spec.py"),
        *("eval/last_loss/__init__.py", "eval/last_loss/spec.py", "eval/last_loss/measure.py", "eval/kinds.py"),
        "experiments/fox/fig99_last_loss.py",
        "experiments/scales.py",
    }
    texts = write_texts(tmp_path / "texts", documents=12)
    asked = ["run", "fig99_last_loss", "--scale", "made-up", "--data", f"text:{texts}"]
    done = subprocess.run(
        [sys.executable, "-m", "experiments", *asked], cwd=checkout, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = checkout / "results" / "made-up"
    assert (results / "figures" / "fig99_last_loss.png").stat().st_size > 1000
    assert "Figure 99" in (results / "report.html").read_text()
    assert "running_mean" in (results / "figures" / "fig99_last_loss.csv").read_text()
