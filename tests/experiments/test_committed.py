"""Tests of what is committed under results/ is what its rows give: everything is drawn again, without torch, and compared."""

import os
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("**/claims.md"))
STORED = ("*.csv", "*.json", "*/*.json", "*/*.jsonl", "*/rows/*.parquet", "measurements/*")
CODE = """
import sys
from matplotlib.figure import Figure
from PIL import Image
from analysis import style
from experiments.__main__ import main
pictures = sys.argv.pop(1) == "pictures"
whole, pack = Figure.savefig, Image.Image.save
Figure.savefig = lambda self, *where, **how: how.get("format") == "pdf" or whole(self, *where, **how)  # not committed
Image.Image.save = lambda self, to, format=None, **how: pack(
    self.resize((1, 1)) if format == "WEBP" else self, to, format, **how  # the report's, which is not committed
)
def a_dot(figure, stem):
    style.plt.close(figure)
    stem.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (1, 1)).save(stem.with_name(f"{stem.name}.png"))
    return [stem.with_name(f"{stem.name}.png")]
style.save = style.save if pictures else a_dot
code = main(sys.argv[1:])
sys.exit(code or "torch" in sys.modules)
"""


def test_no_book_that_is_evaluated_on_is_by_an_author_who_is_trained_on():
    books = pd.read_csv(RESULTS / "books.csv", keep_default_na=False)
    authors = {part: set(own["author"]) for part, own in books.groupby("part")}
    assert set(authors) == {"first", "more", "validation", "heldout"}
    trained, evaluated = authors["first"] | authors["more"], authors["validation"] | authors["heldout"]
    assert "" not in trained | evaluated and not trained & evaluated
    assert len(authors["heldout"]) == (books["part"] == "heldout").sum() == 150
    assert books["digest"].str.fullmatch("[0-9a-f]{16}").all() and books["digest"].is_unique
    assert books["commit"].str.fullmatch("[0-9a-f]{40}").all() and (books["gpt2_tokens"] > 16_384).all()


def paths(folder: Path, patterns: tuple[str, ...]) -> set[Path]:
    return {path.relative_to(folder) for pattern in patterns for path in folder.glob(pattern)}


def assert_equal(one: Path, other: Path) -> None:
    """Text to the byte; pictures as they are seen, because compression and the last bit of a position are the machine's."""
    first, second = one.read_bytes(), other.read_bytes()
    remedy = f"{other.name} is not what its rows give: `python -m experiments render` of its scale, and commit"
    if first != second:
        assert one.suffix == ".png", remedy
        pixels = [np.asarray(Image.open(BytesIO(body)), dtype=np.int16) for body in (first, second)]
        assert pixels[0].shape == pixels[1].shape and np.abs(pixels[0] - pixels[1]).mean() < 255e-3, remedy


@pytest.mark.parametrize("pictures", [False, pytest.param(True, marks=pytest.mark.long)], ids=["numbers", "pictures"])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_what_is_committed_is_what_its_rows_give(folder, pictures, tmp_path):
    stored, scale = folder.parent, folder.name
    copy = tmp_path / stored.relative_to(ROOT)  # pages have commands that name the folder
    for path in paths(stored, STORED):  # of all scales: a figure may draw runs of others
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(stored / path, copy / path)
    command = [sys.executable, "-c", CODE, "pictures" if pictures else "dots", "render", "--scale", scale]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--results-dir", str(stored.relative_to(ROOT))],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = ("figures/*.png", "figures/*.csv", "tables/*", "claims.md")
    assert paths(copy / scale, made) == paths(folder, made)
    for path in sorted(paths(folder, made if pictures else made[1:])):
        assert_equal(copy / scale / path, folder / path)
