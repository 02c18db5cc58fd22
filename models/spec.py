"""The kinds of models: the one list, without torch.

A kind is a folder of its name here: `spec.py`, a frozen, validated dataclass (what the model is, its parameters, FLOPs and
state), and `module.py`, the torch modules, whose BACKBONE is made from the spec. A spec is part of a run's identity and
round-trips through JSON (`spec.json` of a run folder).
"""

from typing import Annotated

from pydantic import Field

from models.delta_net.spec import DeltaNetSpec
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.hgrn2.spec import HGRN2Spec
from models.mamba2.spec import Mamba2Spec
from models.samba.spec import SambaSpec
from models.spec_parts import STRICT as STRICT
from models.spec_parts import PositiveFloat as PositiveFloat
from models.spec_parts import PositiveInt as PositiveInt

ModelSpec = Annotated[
    ForgettingTransformerSpec | Mamba2Spec | HGRN2Spec | DeltaNetSpec | SambaSpec, Field(discriminator="kind")
]
