"""Importing: light where it must be, quiet, and safe from Hugging Face's `kernels` package. Each in a process of its own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(code: str, *more_paths: Path) -> subprocess.CompletedProcess[str]:
    paths = f"import sys; sys.path[:0] = {[str(ROOT), *map(str, more_paths)]!r}\n"
    return subprocess.run([sys.executable, "-c", paths + code], capture_output=True, text=True, cwd=ROOT, check=False)


def fake_distribution(folder: Path) -> None:
    """Metadata of an installed `kernels`, in the version that transformers wants."""
    from transformers.utils import import_utils

    version = getattr(import_utils, "KERNELS_MIN_VERSION", "0.12.0")
    info = folder / f"kernels-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {version}\n")
    (info / "top_level.txt").write_text("kernels\n")
    (info / "RECORD").write_text("kernels/__init__.py,,\n")


def test_hugging_faces_kernels_package_is_no_trap(tmp_path):
    fake_distribution(tmp_path)
    trapped = run("from transformers import PreTrainedModel", tmp_path)
    assert "cannot import name" in trapped.stderr, "the trap is gone: is the guard still needed?"
    guarded = run(
        "import models.hf_guard\n"
        "from transformers import PreTrainedModel, Trainer\n"
        "import accelerate, peft, datasets, lm_eval, fla\n"
        "from transformers.utils import import_utils, is_kernels_available\n"
        "assert not is_kernels_available() and not import_utils.is_kernels_available()\n"
        "assert import_utils._is_package_available('torch', return_version=True)[0]\n"
        "import kernels; print(kernels.__file__)",
        tmp_path,
    )
    assert guarded.returncode == 0, guarded.stderr
    assert guarded.stdout.strip() == str(ROOT / "kernels" / "__init__.py")
    assert (ROOT / "kernels" / "__init__.py").read_text() == ""


def test_specs_and_counts_need_no_torch():
    done = run("import models.spec, models.count, sys; print([m for m in ('torch', 'transformers') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_fox_does_not_load_fla_and_no_model_is_noisy():
    code = (
        "import sys, torch\n"
        "from models.build import build_model\n"
        "from models.spec import *\n"
        "common = dict(vocab_size=64, hidden_size=64, num_layers=1)\n"
        "ids = torch.zeros(1, 4, dtype=torch.long)\n"
        "build_model(ForgettingTransformerSpec(**common, num_heads=2))(ids)\n"
        "print('fla' in sys.modules)\n"
        "for spec in (Mamba2Spec(**common), HGRN2Spec(**common, expand_ratio=32), DeltaNetSpec(**common, head_dim=32)):\n"
        "    build_model(spec).generate(ids, max_new_tokens=2, pad_token_id=0)\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
    assert done.stderr == ""
