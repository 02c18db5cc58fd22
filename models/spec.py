"""List of all kinds of models, without torch.

A kind is a folder of its name: `spec.py` holds a frozen, validated dataclass (what the model is, its parameters, FLOPs and
state size), `module.py` its torch modules, of which the class `Model` is the whole backbone. Specs do not import modules; the
head finds them by the kind's name (models/causal_lm.py). A spec is part of a run's identity and round-trips through JSON."""

from typing import Annotated, Any, get_args

from pydantic import Field

from models.delta_net.spec import DeltaNetSpec
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.fox_hybrid.spec import FoxHybridSpec
from models.gated_delta_net.spec import GatedDeltaNetSpec
from models.gated_linear_attention.spec import GatedLinearAttentionSpec
from models.hgrn2.spec import HGRN2Spec
from models.kimi_delta_attention.spec import KimiDeltaAttentionSpec
from models.mamba2.spec import Mamba2Spec
from models.mamba3.spec import Mamba3Spec
from models.path_fox.spec import PathFoxSpec
from models.samba.spec import SambaSpec
from models.wall_attention.spec import WallAttentionSpec

ModelSpec = Annotated[
    ForgettingTransformerSpec
    | Mamba2Spec
    | HGRN2Spec
    | DeltaNetSpec
    | SambaSpec
    | GatedDeltaNetSpec
    | KimiDeltaAttentionSpec
    | GatedLinearAttentionSpec
    | FoxHybridSpec
    | PathFoxSpec
    | WallAttentionSpec
    | Mamba3Spec,
    Field(discriminator="kind"),
]
KINDS: dict[str, Any] = {kind.kind: kind for kind in get_args(get_args(ModelSpec)[0])}
