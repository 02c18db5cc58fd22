"""Appendix F.10: More forget gates and attention.

F and A of the four most local and four most global heads of FoX (Pro) and FoX (LLaMA), on a different document from Figure 3.
The paper's own captions could not be obtained."""

from dataclasses import replace

from analysis.names import title
from analysis.study import Study
from analysis.style import WIDTH, Files, plt, publish
from experiments.evaluations import gates
from experiments.fox.fig3_forget_gates import COLOURS_NOTE, KIND, first_seeds, head_statistics, matrix, stored_heads, summary  # noqa: F401
from experiments.recipes import lines

PER_LINE = 4
runs = lines("fox_pro", "fox_llama", once=True)


def evals(scale):
    """Matrices of eight heads, on the second held-out document."""
    (spec,) = gates(scale)
    return (replace(spec, document=1, num_maps=8, grid=128),)


def draw(study: Study) -> Files:
    """Draw the matrices; the CSV contains every head's statistics."""
    groups = first_seeds(study)
    lines = {label: -(-len(stored_heads(own)) // PER_LINE) for label, own in groups.items()}
    figure = plt.figure(figsize=(WIDTH, 3.4 * sum(lines.values())))
    blocks = figure.subfigures(len(groups), 1, squeeze=False, height_ratios=list(lines.values()))[:, 0]
    for block, (label, own) in zip(blocks, groups.items(), strict=True):
        block.suptitle(title(label), fontsize=9)
        cell = study.extra(KIND, own["run_id"].iloc[0], "cell") or 1
        panels = block.subplots(2 * lines[label], PER_LINE, squeeze=False)
        for axes in panels.flat:
            axes.set_axis_off()
        for index, head in enumerate(stored_heads(own)):
            for row, quantity in enumerate("FA"):
                axes = panels[2 * (index // PER_LINE) + row, index % PER_LINE]
                axes.set_axis_on()
                matrix(axes, own, head, quantity, cell)
    tables = [head_statistics(own).reset_index().assign(label=label) for label, own in groups.items()]
    document = next((meta["extras"].get("document") for meta in study.metas(KIND)), None)
    return publish(study, figure, tables, COLOURS_NOTE, f"held-out document {document}", "one seed")
