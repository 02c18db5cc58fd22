"""A user's own numbers beside stored ones: within rounding on a CPU, within seeds' noise on a GPU, or not reproduced."""

import io
import math
import shutil
from dataclasses import replace

import pytest
from rich.console import Console

from analysis.prediction import Predicted
from analysis.statistics import Noise
from experiments import execute
from experiments.__main__ import main
from experiments.compare import Compared, print_bands
from experiments.plan import Plan, Run, make_plan
from results.store import read_rows, rows_file, write_rows
from tests.experiments.finished import finish, write_loss
from training.lines import line, read_lines

pytestmark = pytest.mark.usefixtures("pictures_of_a_dot")
FIG2 = "fig2_per_token_loss"
CPU, GPU = "Some CPU (1 thread, AVX2)", "NVIDIA H100 80GB HBM3"


SEEDS = {0: 2.00, 1: 2.01, 2: 1.99}


def trained(asked, losses: dict[int, float], *, device: str, where: str = "runs", final: float | None = None) -> Plan:
    """A plan whose seeds were trained to these held-out losses; `final`: the last batch's, if that is another."""
    request = replace(
        asked, artefacts=(FIG2,), only=asked.only or ("fox_pro",), seeds=tuple(losses), runs_dir=asked.runs_dir.with_name(where)
    )
    plan = make_plan(request)
    for run in plan.runs.values():
        loss = losses[run.spec.seed]
        run.folder.create(run.folder.path, run.spec)
        last = loss if final is None else final
        finish(run, evaluations=True, loss=loss, weights=f"{loss}".encode(), final_loss=last, device=device)
    return plan


def drawn(plan: Plan) -> tuple[int, str]:
    code = execute.draw([*plan.drawings.values()], Console(file=(said := io.StringIO()), width=500))
    return code, said.getvalue()


def edit_commit(run: Run, commit: str) -> None:
    """Have an evaluation in a run folder made by another commit."""
    path = run.eval_file(run.evals[0])
    rows, meta = read_rows(path)
    write_rows(
        path, rows, {**meta, "provenance": {**meta["provenance"], "git_sha": commit, "git_dirty": True}}, run.evals[0].SCHEMA
    )


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.002, 0), (1.25, 3)])
def test_a_stored_loss_that_is_another_is_no_rounding(asked, factor, code):
    plan = trained(asked, {0: 2.0}, device=CPU)
    assert drawn(plan)[0] == 0
    (run,) = plan.runs.values()
    rows = read_rows(rows_file(asked.results_dir, "tiny", run.spec.run_id, run.eval_file(run.evals[0]).stem))[0]
    write_loss(run, run.evals[0], 2.0 + (factor - 1) * rows["loss"].mean())
    edit_commit(run, "fedcba9876543210")
    got, said = drawn(plan)
    assert got == code
    assert ("at most 0.01 nats apart" in said) == (factor == 1.002)
    for words in ("1 differ by more than rounding", "nats by commit fedcba9876+ on", "stored, by abc on", "rounding does not"):
        assert (words in said) == (code == 3), words


def test_a_training_on_a_cpu_that_ends_elsewhere_is_not_reproduced_and_names_both_commits(asked):
    drawn(trained(asked, {0: 2.0}, device=CPU))
    again = trained(asked, {0: 2.5}, device=CPU, where="again")
    (run,) = again.runs.values()
    (start,), _ = read_lines(run.folder.provenance_file, run.spec.run_id)
    run.folder.provenance_file.write_text(line({**start, "git_sha": "fedcba9876543210"}, run.spec.run_id))
    code, said = drawn(again)
    assert code == 3
    assert f"training of {run.folder.path.name}: 2.5000 nats by commit fedcba9876 on {CPU}, 2.0000 stored, by abc" in said
    assert "parted" not in said, "there are no seeds to judge it by"
    assert drawn(make_plan(replace(again.request, draw_these_trainings=True)))[0] == 0, "they are to be drawn"


@pytest.mark.parametrize(("final", "loss", "code"), [(2.03, 2.03, 0), (2.003, 2.03, 0), (2.03, 2.1, 3), (2.003, 2.1, 3)])
def test_a_training_on_a_cpu_that_amplifies_rounding_is_judged_by_seeds(asked, final, loss, code):
    """The last batch's loss parts from what is stored or, with it still near, the mean loss does."""
    assert drawn(trained(asked, SEEDS, device=CPU))[0] == 0
    again = trained(asked, {0: loss}, device=CPU, where="again", final=final)
    (run,) = again.runs.values()
    got, said = drawn(again)
    assert got == code and f"parted training of {run.folder.path.name}: " in said and " stored, by abc on" in said
    assert ("2 of 2 numbers lie in the band" in said) == (code == 0)
    assert "more than rounding" not in said


@pytest.mark.parametrize(("loss", "code"), [(2.03, 0), (2.5, 3)])
def test_a_run_on_a_gpu_ends_with_the_band_of_one_more_seed(asked, loss, code):
    """mean 2, standard deviation 0.01, 2 degrees of freedom: 2 +- 4.303 x 0.01 x sqrt(4/3) is 1.950 to 2.050."""
    assert drawn(trained(asked, SEEDS, device=GPU))[0] == 0
    shutil.rmtree(asked.runs_dir)
    mine = trained(asked, {7: loss}, device=GPU, where="again")
    for _ in range(2):  # the second time its own rows are stored, too, and do not widen the band
        got, said = drawn(mine)
        assert got == code
        inside = 2 if code == 0 else 0
        assert f"{inside} of 2 numbers lie in the band that the stored seeds predict for one more" in said
        assert ("not reproduced" in said) == (code == 3)
    command = ["compare", "--runs-dir", str(mine.request.runs_dir), "--results-dir", str(asked.results_dir)]
    assert main(command) == code


def test_the_command_prints_the_band(asked, capsys):
    drawn(trained(asked, SEEDS, device=GPU))
    shutil.rmtree(asked.runs_dir)
    (run,) = trained(asked, {7: 2.03}, device=GPU, where="again").runs.values()
    assert main(["compare", str(run.folder.path), "--results-dir", str(asked.results_dir)]) == 0
    said = capsys.readouterr().out
    mean = 2 + sum(position**-0.5 for position in range(1, 257)) / 256
    assert f"{mean + 0.03:.4f}" in said and f"{mean - 0.0497:.4f} to {mean + 0.0497:.4f} (2 df)" in said
    assert "3 trainings" in said and "inside" in said


def test_seeds_that_are_trained_together_have_nothing_to_be_compared_with(asked):
    """However far apart they are, and also once all of them are stored."""
    drawn(trained(asked, {3: 2.0, 4: 2.01, 5: 1.99}, device=GPU))
    plan = trained(replace(asked, only=("fox_llama",)), {0: 2.0, 1: 2.5}, device=GPU, where="again")
    for _ in range(2):
        code, said = drawn(plan)
        assert code == 0 and "0 of 0 numbers lie in the band" in said
        assert "for 4 no other training is stored to compare with" in said


def test_noise_that_nobody_knows_is_said(asked):
    drawn(trained(asked, {0: 2.0}, device=GPU))
    shutil.rmtree(asked.runs_dir)
    code, said = drawn(trained(asked, {7: 9.0}, device=GPU, where="again"))
    assert code == 0 and "0 of 0 numbers" in said and "the band of 2 is not known" in said
    code, said = drawn(trained(replace(asked, results_dir=asked.results_dir / "new"), {7: 9.0}, device=GPU, where="again"))
    assert code == 0 and "for 2 no other training is stored to compare with" in said


@pytest.mark.parametrize(("values", "outside", "fits", "told"), [
    ([1.9, -1.9], 0, True, "2 of 2 numbers lie in the band"), ([2.1] * 3 + [0.0], 3, True, "by chance 0.2 would lie outside"),
    ([2.49, 0.0, 0.0, 0.0], 1, True, "none lies further out than chance explains"),
    ([2.51, 0.0, 0.0, 0.0], 1, False, "not reproduced"), ([-2.51, *[0.0] * 3], 1, False, "not reproduced"),
    ([1.97], 1, False, "not reproduced"), ([-2.49, *[0.0] * 3], 1, True, "by chance"),
    ([], 0, True, "0 of 0 numbers"),
])  # fmt: skip
def test_the_furthest_of_many_numbers_may_lie_further_out(values, outside, fits, told):
    """One of four normal numbers lies 2.498 standard deviations out in 5% of the cases, and a single one 1.960."""
    known = Predicted((0.0,), Noise(0.5, math.inf, "somewhere"))  # a variance of 1 with that of the one that is stored
    found = [Compared("r", "e", "n", value, known) for value in values]
    found += [Compared("r", "e", "n", 99.0, Predicted((0.0,), None)), Compared("r", "e", "n", 99.0, None)]
    said = io.StringIO()
    assert print_bands(found, Console(file=said, width=500)) is fits
    assert sum(each.outside for each in found) == outside and told in said.getvalue()
    assert f"{len(values) - outside} of {len(values)} numbers lie in the band" in said.getvalue()
    assert "the band of 1 is not known" in said.getvalue() and "for 1 no other training is stored" in said.getvalue()


def test_two_folders_part_where_their_losses_do(asked, capsys):
    folders = []
    for where, device, step, off in (("a", CPU, 99, 0.0), ("b", CPU.replace("1 thread", "2 threads"), 7, 0.25)):
        (run,) = trained(asked, {0: 2.0}, device=device, where=where).runs.values()
        rows = run.folder.read_metrics()
        rows = [{**row, "loss": row["loss"] + off * (row["step"] >= step) * (1 if row["step"] != 9 else 2)} for row in rows]
        run.folder.metrics_file.write_text("".join(line(row, run.spec.run_id) for row in rows))
        folders.append(str(run.folder.path))
    assert main(["compare", *folders]) == 0
    said = capsys.readouterr().out
    assert "they part at step 7: loss 2 and 2.25, by 0.25" in said and "furthest apart at step 9" in said
    assert "device" in said and "1 thread" in said and "2 threads" in said and "commit" not in said and "train." not in said
    assert main(["compare", folders[0], folders[0]]) == 0
    assert "are equal to the bit" in (said := capsys.readouterr().out) and "are the same" in said


def test_a_folder_that_holds_no_run_is_named(asked, capsys, tmp_path):
    assert main(["compare", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert main(["compare", "--runs-dir", str(tmp_path / "none")]) == 2
    assert "holds no runs" in capsys.readouterr().err
    (run,) = trained(asked, {0: 2.0}, device=CPU).runs.values()
    assert main(["compare", str(run.folder.path), "--results-dir", str(tmp_path / "none")]) == 2
    assert f"error: --results-dir {tmp_path / 'none'}: there is no such folder to compare with" in capsys.readouterr().err
