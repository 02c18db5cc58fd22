"""The figures and tables there are, in the order of the report. Each is a module of this package, named like the artefact:

* KIND, TITLE, PAPER, SHOWS, CLAIMS, MODELS: what it needs, what it is called, and what the paper shows there;
* render(rows, meta, out) -> paths: write its figures or tables below `out`;
* summary(rows, meta) -> Table: its numbers in short.
"""

from types import ModuleType

from analysis import (
    fig2_per_token_loss,
    fig3_forget_gates,
    fig4_needle,
    table1_lm_eval,
    table2_longbench,
    table6_throughput,
)

ARTEFACTS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        fig2_per_token_loss,
        fig3_forget_gates,
        fig4_needle,
        table1_lm_eval,
        table2_longbench,
        table6_throughput,
    )
}
