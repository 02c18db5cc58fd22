"""Saving figures: equal rows give equal bytes, and a picture that shows the same stays."""

from PIL import Image, PngImagePlugin

from analysis.style import plt, save


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
