"""Saving figures: equal rows give equal bytes, and a picture that shows the same stays."""

from PIL import Image, PngImagePlugin

from analysis import style
from analysis.style import plt, save
from tests.synthetic import Store, main_losses


def drawn(folder, top=1.0, note="scale: tiny"):
    figure, axes = plt.subplots(figsize=(2, 1))
    axes.plot([0, 1], [0, top])
    figure.suptitle(note)
    save(figure, folder / "fig")
    return (folder / "fig.png").read_bytes()


def test_a_png_that_shows_the_same_stays_however_it_is_compressed(tmp_path):
    path = tmp_path / "fig.png"
    first = drawn(tmp_path)
    assert drawn(tmp_path) == first
    with Image.open(path) as image:
        info = PngImagePlugin.PngInfo()
        info.add_text("Description", image.info["Description"])
        image.save(path, pnginfo=info, compress_level=1)
    elsewhere = path.read_bytes()
    assert elsewhere != first and drawn(tmp_path) == elsewhere
    assert drawn(tmp_path, top=0.9) not in (first, elsewhere)
    assert drawn(tmp_path) == first
    assert drawn(tmp_path, note="scale: mini") != first
    path.write_bytes(first[:1000])
    assert drawn(tmp_path) == first


def test_a_table_names_what_was_trained_elsewhere_than_most(tmp_path):
    store, h100 = Store(tmp_path), {"device": "H100", "versions": {"triton": "3.6.0"}}
    study = main_losses(store, models=("fox_pro", "hgrn2"), seeds=3)
    *same, other, newer = study.lines
    places = {other.run_id: {**h100, "device": "H200"}, newer.run_id: {**h100, "versions": {"triton": "3.7.1"}}}
    for line in study.lines:
        (start,) = study.runs[line.run_id]["starts"]
        start |= places.get(line.run_id, h100)
    said = style.about(study).partition("Trained on ")[2]
    assert said == "H100, Triton 3.6.0, but on H200, Triton 3.6.0: HGRN2 (seed 1); on H100, Triton 3.7.1: HGRN2 (seed 2)."
    study.lines = same
    assert "Trained on" not in style.about(study)
