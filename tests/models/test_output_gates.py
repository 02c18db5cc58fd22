"""Output gates of the delta rules: sigmoid or SiLU."""

from dataclasses import replace

import pytest
import torch

from models.build import build_model


@pytest.mark.parametrize(("name", "own"), [("gated_delta_net", "silu"), ("kimi_delta_attention", "sigmoid")])
def test_a_gate_of_zero_closes_silu_and_opens_sigmoid_by_half(specs, name, own):
    assert specs[name].output_gate_activation == own
    read = {}
    for activation in ("sigmoid", "silu"):
        torch.manual_seed(0)
        model = build_model(replace(specs[name], output_gate_activation=activation)).eval()
        attn = model.model.layers[0].attn
        x = torch.randn(1, 9, specs[name].hidden_size)
        seen = [attn(x)[0]]
        with torch.no_grad():
            for parameter in attn.g_proj.parameters():
                parameter.zero_()
            seen.append(attn(x)[0])
            if name == "kimi_delta_attention":
                attn.g_proj[1].bias.fill_(100.0)  # an open gate
                seen.append(attn(x)[0])
        read[activation] = seen
    assert not read["silu"][1].any() and read["sigmoid"][1].any()
    assert not torch.equal(read["silu"][0], read["sigmoid"][0])
    if name == "kimi_delta_attention":
        torch.testing.assert_close(read["sigmoid"][2], 2 * read["sigmoid"][1])
        torch.testing.assert_close(read["silu"][2], 100 * read["sigmoid"][2], rtol=1e-4, atol=1e-4)
