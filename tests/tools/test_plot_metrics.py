import json

from PIL import Image

from big_align.tools import plot_metrics


def test_the_picture_has_a_panel_for_the_loss_and_one_for_each_evaluator(tmp_path, capsys):
    lines = [
        {"step": 1, "loss": 2.0, "time/steps": 0.9, "epoch/a": 0.1},
        {"step": 2, "loss": 1.0},
        {"step": 2, "a/r1": 0.5},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = tmp_path / "curves.png"
    assert plot_metrics.main([f"--workdir={tmp_path}", f"--output={output}"]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert Image.open(output).width == 2 * 450


def test_a_workdir_without_metrics_is_one_line(tmp_path, capsys):
    assert plot_metrics.main([f"--workdir={tmp_path}"]) == 1
    assert capsys.readouterr().err.startswith(f"error: no {tmp_path}/metrics.jsonl")
