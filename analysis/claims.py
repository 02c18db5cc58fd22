"""All claims of the papers that are judged, by id."""

from analysis.acp import claims_pruning
from analysis.fox import claims_ablation, claims_cost, claims_loss, claims_needle, claims_scale, claims_tasks
from analysis.stick_breaking import claims_stick
from analysis.verdict import Claim

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for module in (
        claims_loss,
        claims_ablation,
        claims_tasks,
        claims_needle,
        claims_scale,
        claims_cost,
        claims_pruning,
        claims_stick,
    )
    for claim in module.CLAIMS
}
