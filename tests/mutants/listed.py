"""Faults that would make a result wrong, with the tests that must notice: a name, an expression in it, what it becomes.

The name is that of a function, class or constant, wherever it stands. The expression, keyword argument (name=value) or
statement is found in it however it is laid out. Both together mean one place. The tests are names of files, where need be with
their folder.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    old: str
    new: str
    tests: str


FAULTS = {
    # The operators
    "test_forgetting_attention": [
        ("first_visible_key", "position_T - (min(window_size, T) - 1)", "position_T - min(window_size, T)"),
        ("first_visible_key", "torch.where(is_cut_BHT, position_T, 0)", "torch.where(is_cut_BHT, position_T + 1, 0)"),
        (
            "pruned_tiles",
            "torch.minimum(count_BHM, first_query_M // tile)",
            "torch.minimum(count_BHM, first_query_M // tile + 1)",
        ),
        (
            "pruned_tiles",
            "cum_BHT[..., first_query_M] - threshold_BH.double().unsqueeze(-1)",
            "cum_BHT[..., first_query_M] + threshold_BH.double().unsqueeze(-1)",
        ),
        ("pruning_threshold", "-2.0 * logit_bound - math.log(num_keys)", "-1.0 * logit_bound - math.log(num_keys)"),
        (
            "reference_attention",
            "(key_T <= query_Q1) & (key_T >= first_key_BHQ[..., None])",
            "(key_T < query_Q1) & (key_T >= first_key_BHQ[..., None])",
        ),
        ("_blocks", "rows.stop + num_keys - num_queries", "rows.stop"),
        ("_block_logits", "position_J[diagonal:] > query_R1", "position_J[diagonal:] >= query_R1"),
        ("_block_logits", "position_J < first_NR[..., None]", "position_J <= first_NR[..., None]"),
        (
            "chunked_backward",
            "torch.bmm(do_NQD[:, rows], v_NTD[:, keys].transpose(1, 2)).sub_(delta_NQ1[:, rows])",
            "torch.bmm(do_NQD[:, rows], v_NTD[:, keys].transpose(1, 2))",
        ),
        ("chunked_backward", "torch.bmm(dlogits_NRJ, k_NTD[:, keys]).mul_(scale)", "torch.bmm(dlogits_NRJ, k_NTD[:, keys])"),
        ("chunked_backward", "dcum_NT[:, keys] -= dlogits_NRJ.sum(1)", "dcum_NT[:, keys] += dlogits_NRJ.sum(1)"),
        (
            "chunked_backward",
            "dk_NTD[:, keys].baddbmm_(dlogits_NRJ.transpose(1, 2), q_NQD[:, rows], alpha=scale)",
            "dk_NTD[:, keys].baddbmm_(dlogits_NRJ.transpose(1, 2), q_NQD[:, rows])",
        ),
    ],
    "test_tight": [
        (
            "tight_tiles",
            "_by_tile(kept_BHQ, tile, torch.inf).amin(-1).flip(-1).cummin(-1).values.flip(-1)",
            "_by_tile(kept_BHQ, tile, torch.inf).amin(-1)",
        ),
        (
            "tight_tiles",
            "_by_tile(-cum_BHT, tile, -torch.inf).logsumexp(-1).logcumsumexp(-1)",
            "_by_tile(-cum_BHT, tile, -torch.inf).logsumexp(-1)",
        ),
        ("_kept", "first_BHRI[..., None]", "0"),
        ("forgetting_attention", "log_tolerance if tight else None", "-1e-3 if tight else None"),
    ],
    "kernels/test_without_gpu -k under_the_interpreter": [
        ("FusedLinearCrossEntropy.backward", "(derivatives @ weight) * grad", "derivatives @ weight"),
        ("_swiglu_kernel", "1.0 + gate_RC * (1.0 - sigmoid_RC)", "1.0 - sigmoid_RC"),
        ("_cross_entropy_kernel", "sum_C * tl.exp(top - above) + tl.exp(x_C - above)", "sum_C + tl.exp(x_C - above)"),
        ("_conv_backward_kernel", "da + db + dc + dd", "da + db + dc"),
        ("_halves_kernel", "each_N[None, :] <= each_M[:, None] + _HALF", "each_N[None, :] < each_M[:, None] + _HALF"),
        ("_halves_kernel", "head // HEADS_PER_KEY * k_h", "head * k_h"),
        ("_prefix_kernel", "tl.associative_scan(need_M, 0, _least, reverse=True)", "tl.associative_scan(need_M, 0, _least)"),
        ("_stretch_kernel", "(stop > first) & (decay > limit)", "(stop > first) & (decay > limit + 15)"),
        ("_stretch_kernel", "tl.maximum(split * stretch, T - window)", "tl.maximum(split * stretch, T - window - 1)"),
        ("_walk", "acc_MD * shrink_M[:, None]", "acc_MD"),
        ("_norm_of_gated_backward_kernel", "products * scale / d", "products / d"),
        ("_norm_of_gated_kernel", "z_ptr + row // T * z_b + row % T * z_t", "z_ptr + row * z_t"),
    ],
    "kernels/test_without_gpu -k interpreters": [
        ("_rows", "(diagonal == query) & (common <= query)", "diagonal == query"),
        ("_rows", "gl.sum(before_M8, 1)", "gl.max(before_M8, 1)"),
        ("before_kernel", "(decay < LEAST_DECAY) == 0", "(decay < LEAST_DECAY) == 1"),
    ],
    "test_launch": [
        ("launch", "tuple([address % 16 for address in addresses])", "()"),
    ],
    "test_stick_breaking": [
        (
            "reference_attention",
            "key_T <= query_Q1 if attend_current else key_T < query_Q1",
            "key_T < query_Q1 if attend_current else key_T < query_Q1",
        ),
        ("reference_attention", "log_left_BHQT[..., 1:]", "log_left_BHQT[..., :-1]"),
        ("chunked_backward", "older_NRJ[..., :1] += left_NRJ[..., -1:] * dr_NQ1[:, rows]", "pass"),
    ],
    "test_tuning": [
        ("_few", "type(tuner).prune_configs(tuner, arguments)", "tuner.configs"),
    ],
    "test_errors": [
        ("measure_errors", "error**2", "error"),
    ],
    # The models
    "test_forgetting_transformer": [
        ("decay_time_bias", "-torch.log(torch.expm1(1.0 / times))", "torch.log(torch.expm1(1.0 / times))"),
        ("rotate", "second * cos + first * sin", "second * cos - first * sin"),
        ("ForgettingAttention.forward", "(F.silu if silu else torch.sigmoid)(gate)", "gate"),
        (
            "ForgettingAttention.threshold",
            "pruning_threshold(bound, k.shape[1], log_tolerance)",
            "pruning_threshold(bound / 2, k.shape[1], log_tolerance)",
        ),
        ("ForgettingAttention.attend", "window_size=self.spec.window_size", "window_size=None"),
    ],
    "test_models": [
        (
            "CausalLM.forward",
            "F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())",
            "F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())",
        ),
        ("ForgettingAttention._project", "projected[:, -1:]", "shifted[:, -1:]"),
        ("Block._mix", "zero_padded(self.attn_norm(x), padding)", "self.attn_norm(x)"),
        ("_padding", "(~seen_BT).sum", "seen_BT.sum"),
    ],
    "test_count": [
        ("ForgettingTransformerSpec.mixer_params", "heads * (d + 1)", "heads * d"),
        ("ForgettingTransformerSpec.mixing_flops", "per_key * seq_len // 2", "per_key * seq_len"),
    ],
    "test_initial_values": [
        ("MIXER_GAIN", "2**-2.5", "1.0"),
    ],
    "test_load test_convert": [
        ("_load_authors", "wanted.keys() - found.keys()", "()"),
    ],
    # The data
    "test_sampler": [
        ("bos_roll", "inputs_BT[:, 0] = bos_id", "pass"),
        ("Sampler.rows", "self.batches_per_column", "self.document_len // self.seq_len"),
        ("share_of", "slice(rank * share, (rank + 1) * share)", "slice(rank, rank + share)"),
    ],
    "test_corpus": [
        ("Corpus._check_file", "crc != self._files.get(path.relative_to(self.folder).as_posix())", "False"),
        (
            "Split._read_block",
            "self._blocks[key][indices - first_row, start - first_col : stop - first_col]",
            "self._blocks[key][indices - first_row, : stop - start]",
        ),
    ],
    "test_prepare": [
        (
            "resolve",
            "[FORMAT, digests[0], choice.digest(), document_len, split, max_documents]",
            "[FORMAT, digests[0], choice.digest(), document_len, max_documents]",
        ),
        ("_tokenise", "ids[: len(ids) // document_len * document_len]", "ids"),
    ],
    # The training
    "test_step": [
        ("open_corpus", "corpus.spec.fingerprint != spec.data.fingerprint", "False"),
        (
            "Stepper.run",
            "nn.utils.clip_grad_norm_(self._parameters, self.spec.grad_clip, foreach=True)",
            "nn.utils.get_total_norm([p.grad for p in self._parameters])",
        ),
        ("Stepper._backward", "losses.where(targets >= 0, 0.0).sum() / counted", "losses.where(targets >= 0, 0.0).mean()"),
        ("Guard.judge", "torch.isfinite(loss) & torch.isfinite(grad_norm)", "torch.isfinite(loss)"),
        ("TrainSpec.weight_decay", "0.1", "0.01"),
    ],
    "test_optimizer": [
        (
            "decays",
            'parameter.ndim >= 2 and not name.endswith(("bias", "A_log", "lower_bounds"))',
            'not name.endswith(("bias", "A_log", "lower_bounds"))',
        ),
    ],
    "test_schedule": [
        (
            "learning_rate",
            "(tokens_seen - spec.warmup_tokens) / (spec.train_tokens - spec.warmup_tokens)",
            "(tokens_seen - spec.warmup_tokens) / spec.train_tokens",
        ),
    ],
    "test_spec": [
        ("_changed", "True", "False"),
    ],
    "test_run_folder": [
        ("read_line", 'row if check in (_crc(row, owner), _crc(row, "")) else None', "row"),
        ("_fault", 'digests and digest(path) != entry["sha256"]', "False"),
    ],
    "test_checkpoint": [
        ("Checkpoints._publish", "whole", "steps"),
    ],
    "test_loop": [
        ("Stepper.run", "verdict != 0", "0 * verdict"),
        ("Journal._anomaly", 'self.execution.on_bad_step == "stop"', "False"),
    ],
    # The evaluations
    "test_kinds": [
        ("_UNBOUND", '(None, "heldout", "local")', "(None,)"),
    ],
    "test_job": [
        ("exists", '(meta["run_id"], meta["eval_id"]) != (subject.run_id, eval_id(spec))', "False"),
        ("Loaded._folder", "RunFolder(self.subject.path).check_export()", "None"),
    ],
    "test_loading test_job": [
        ("Loaded.check_token_ids", "own.fingerprint == data.fingerprint", "True"),
    ],
    "test_needle": [
        ("Context.heldout", "found != wanted", "False"),
        ("CellBuilder._checked", "len(prompt) > length", "False"),
        ("insertion_point", "point > 0 and hay[point - 1] not in stops", "False"),
    ],
    "test_lm_eval test_needle_recall": [
        ("at_ends", "len(ids) - 1 - count - first", "len(ids) - count - first"),
    ],
    "test_needle_recall": [
        ("evaluate", "with_it - without", "with_it"),
    ],
    "test_partial": [
        ("Partial.__init__", "found[1:] if found[:1] == [self._head] else []", "found[1:]"),
    ],
    "test_per_token_loss": [
        ("Compute.inference", 'self.precision == "bf16"', "False"),
        ("document_losses", "bos_id", "0"),
    ],
    "test_throughput": [
        ("evaluate", "seconds_RM[:, 1] / seconds_RM[:, 0]", "seconds_RM[:, 0] / seconds_RM[:, 1]"),
    ],
    # The store
    "test_store": [
        ("_read_pair", 'hashlib.sha256(body).hexdigest() != meta.get("rows_sha256")', "False"),
        ("difference", "not np.array_equal(a[~finite], b[~finite], equal_nan=True)", "False"),
    ],
    "test_sealed": [
        ("read_sealed", "seal != _digest(values)", "False"),
    ],
    "test_schema": [
        ("Schema.validate", "repeated.any()", "False"),
    ],
    # Statistics, verdicts and claims
    "test_statistics": [
        ("Estimate.interval", "self.df", "1e9"),
        ("own_noise", "ddof=1", "ddof=0"),
        ("contrast", "by_source.get(term.source, 0.0)", "0.0"),
        ("holm", "np.arange(len(order), 0, -1)", "1.0"),
    ],
    "test_verdict": [
        ("decide_any", "len(alternatives) * min(holds)", "min(holds)"),
        (
            "decide_any",
            "[max(each.p_holds for each in some) for some in alternatives]",
            "[min(each.p_holds for each in some) for some in alternatives]",
        ),
    ],
    "test_curves": [
        ("LossCurve.term", "last - first + 1", "last - first + 2"),
    ],
    "test_study": [
        ("Study._evaluations", 'meta["rows_sha256"] != digest', "False"),
    ],
    "experiments/test_figures": [
        ("grid_inside", "(32, 16, 8, 4, 2, 1)", "(16, 8, 4, 2, 1)"),
        ("_steps", "losses.everywhere", "end"),
        ("_what", "lengths.min()", "lengths.max()"),
        ("at_longer_contexts", "set(speed) & set(here)", "set(speed) | set(here)"),
        ("rates_tried", "best in (low, high)", "best == low"),
    ],
    "experiments/test_claims": [
        ("c4", "LATE * fox.train_len", "0.5 * fox.train_len"),
        ("c22b", "9.5", "8.5"),
        ("c30", "0.85", "0.95"),
    ],
    "eval/test_context_use": [
        ("evaluate", "place - spec.targets - length", "place - length"),
    ],
    # Plans and what carries them out
    "test_plan": [
        ("_paper", "256", "128"),
        ("SCALES", "45 * Gi", "48 * Gi"),
        ("Recipe.run_spec", "self.seed", "0"),
        ("_check_stored", 'data["fingerprint"] != own != "absent"', "False"),
        ("Run.missing_evals", "not self._is_stored(spec)", "True"),
    ],
    "test_plan test_count": [
        ("_attention", "not (fox or stick)", "True"),
        ("_OWN", "2 * scale.num_layers", "scale.num_layers"),
    ],
    "test_trainings": [
        ("_check_adopted", "weights != others", "False"),
    ],
    "test_collect": [
        ("_keep", "difference <= ROUNDING", "True"),
        ("_beyond", "abs(one - other) <= BOUND", "True"),
    ],
    "experiments/test_command_line": [
        ("adopt", "_digest(folder)", '"adopted"'),
    ],
    "test_local": [
        ("fruitless_starts", 'event["mark"] == mark', "True"),
    ],
    "test_dry_run": [
        ("groups", "size.minutes.bit_length() // 2", "0"),
    ],
    "test_submit": [
        ("_dependency", "'afterany'", "'afterok'"),
        ("adopt", "submission.withdrawn or job.array != known", "submission.withdrawn"),
    ],
    "test_epilogue": [
        ("decide", "state not in ALIVE", "False"),
        ("fruitless_starts", 'event.get("mark") == NEVER_BEGAN', "False"),
    ],
    "test_status": [
        ("_queued_state", "queued.held", "False"),
    ],
}
MUTANTS = [Mutant(*fault, tests) for tests, faults in FAULTS.items() for fault in faults]
