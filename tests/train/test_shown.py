"""Where there is no terminal, progress is plain lines now and then, and nothing that is over in no time says anything."""

from splashlite.train import shown


def test_plain_lines_now_and_then(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(shown, "monotonic", lambda: now[0])
    with shown.shown("steps") as heard:
        for step in range(1, 1201):
            now[0] += 0.25
            heard(step, 1200, loss=3.14159, tau=1.5)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 5 and lines[-1] == "1,200 of 1,200 steps · loss 3.14 · tau 1.5"


def test_a_total_that_is_not_known_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(shown, "PAUSE_S", 0)
    with shown.shown("answer tokens") as heard:
        heard(1024, None)
    assert capsys.readouterr().err == "1,024 answer tokens\n"


def test_what_is_over_at_once_says_nothing(capsys):
    with shown.shown("steps") as heard:
        heard(1, 2)
    assert capsys.readouterr() == ("", "")
