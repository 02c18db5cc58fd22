"""The paper's counting of parameters and FLOPs (Table 6). Torch is needed only to count a model, not a spec's
formula."""

from typing import TYPE_CHECKING

from models.spec import DeltaNetSpec, ForgettingTransformerSpec, HGRN2Spec, Mamba2Spec, ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def num_params(model: "PreTrainedModel | ModelSpec") -> int:
    """Parameters without the input embedding, but with the output head: the paper's "non-embedding" count.

    Constant (fixed) gates are no parameters. A spec is counted by arithmetic, without torch.
    """
    if isinstance(model, (ForgettingTransformerSpec, Mamba2Spec, HGRN2Spec, DeltaNetSpec)):
        return _num_params_of_spec(model)
    embedding = sum(p.numel() for p in model.get_input_embeddings().parameters())
    return sum(p.numel() for p in model.parameters()) - embedding


def flops_per_token(spec: ModelSpec, seq_len: int) -> int:
    """FLOPs of a forward pass per token at `seq_len`; the paper takes training as three times this.

    2N for the matrices, plus: attention 2 * layers * d * L (the causal average of L/2 keys); recurrences a multiple
    of layers * d * state. Mamba-2's layers count in pairs, as the paper's 24 blocks. A window shorter than the
    sequence bounds the keys.
    """
    matrices = 2 * num_params(spec)
    d, layers = spec.hidden_size, spec.num_layers
    if isinstance(spec, ForgettingTransformerSpec):
        window = spec.window_size
        if window is None or window >= seq_len:
            return matrices + 2 * layers * d * seq_len
        # the first `window` queries see window/2 keys on average, the rest `window`
        keys = (window * window / 2 + (seq_len - window) * window) / seq_len
        return matrices + int(4 * layers * d * keys)
    if isinstance(spec, Mamba2Spec):
        return matrices + 20 * (layers // 2) * d * spec.state_size
    if isinstance(spec, HGRN2Spec):
        return matrices + 5 * layers * d * spec.expand_ratio
    return matrices + 6 * layers * d * spec.head_dim


def state_size(spec: ModelSpec, seq_len: int) -> int:
    """Numbers kept per sequence for decoding after `seq_len` tokens, over all layers (convolution states included)."""
    d, layers = spec.hidden_size, spec.num_layers
    if isinstance(spec, ForgettingTransformerSpec):
        length = seq_len if spec.window_size is None else min(seq_len, spec.window_size)
        per_token = 2 * d + (spec.num_heads if spec.forget_gate != "none" else 0)
        return layers * (length * per_token + d * (spec.use_k_shift + spec.use_v_shift))
    if isinstance(spec, Mamba2Spec):
        inner = spec.expand * d
        return layers * (inner * spec.state_size + (inner + 2 * spec.state_size) * spec.conv_size)
    if isinstance(spec, HGRN2Spec):
        return layers * d * spec.expand_ratio
    return layers * d * (spec.head_dim + 3 * spec.conv_size)


def _num_params_of_spec(spec: ModelSpec) -> int:
    d, layers = spec.hidden_size, spec.num_layers
    head_and_norm = spec.vocab_size * d + d
    if isinstance(spec, Mamba2Spec):
        inner = spec.expand * d
        conv_dim = inner + 2 * spec.state_size
        in_proj = d * (inner + conv_dim + spec.num_heads)
        mixer = in_proj + conv_dim * (spec.conv_size + 1) + 3 * spec.num_heads + inner + inner * d
        return head_and_norm + layers * (d + mixer)
    mlp = 3 * d * spec.intermediate_size + 2 * d  # with both norms of the block
    if isinstance(spec, HGRN2Spec):
        return head_and_norm + layers * d + layers * (mlp + 4 * d * d + d)  # layers * d: the lower bounds
    if isinstance(spec, DeltaNetSpec):
        mixer = 4 * d * d + d * (d // spec.head_dim) + 3 * d * spec.conv_size + spec.head_dim
        return head_and_norm + layers * (mlp + mixer)
    gate = {"full": spec.num_heads * (d + 1), "bias_only": spec.num_heads, "fixed": 0, "none": 0}[spec.forget_gate]
    shifts = (spec.use_k_shift + spec.use_v_shift) * spec.num_heads * d
    qk_norm = 2 * (spec.head_dim if spec.qk_norm_share_param_across_head else d) if spec.qk_norm else 0
    output = (d * d if spec.use_output_gate else 0) + (d if spec.use_output_norm else 0)
    return head_and_norm + layers * (mlp + 4 * d * d + gate + shifts + qk_norm + output)
