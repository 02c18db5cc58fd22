"""The figures and tables there are, in the order of the report. Each is a module of this package named like the artefact with

    KIND, TITLE, PAPER, SHOWS, CLAIMS    what it needs, what it is called, and what the paper shows there
    render(rows, meta, out) -> paths     write its figures or tables below `out`
    summary(rows, meta) -> Table         its numbers in short
"""

from types import ModuleType

from analysis import fig2_per_token_loss

ARTEFACTS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (fig2_per_token_loss,)
}
