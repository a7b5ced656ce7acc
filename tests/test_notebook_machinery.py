"""What nbval compares in a notebook, and what the refresh command writes."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"loaded_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


comparison = load(ROOT / "notebooks" / "conftest.py")
refresh = load(ROOT / "book" / "tools" / "refresh.py")


@pytest.mark.parametrize(
    ("stored", "new", "close"),
    [
        ("x = 0.500 ±0.001", "x = 0.501 ±0.001", True),
        ("x = 0.500 ±0.001", "x = 0.502 ±0.001", False),
        ("x = 0.500", "x = 0.501", False),
        ("x = 0.500 ±0.001", "x = 0.501", False),
        ("x = 0.500", "x = 0.500 ±0.001", False),
        ("x = 0.500 ±0.001", "x = 0.501 ±0.1", False),
        ("x = 0.500 ±0.1", "x = 0.501 ±0.001", False),
        ("x = 0.500 ±0.001", "y = 0.500 ±0.001", False),
        ("x = 0.500 ±0.001 a", "x = 0.501 ±0.001 a", False),
        ("±0.001 x = 0.500", "±0.001 x = 0.501", False),
        ("1 2 3 ±1", "2 1 4 ±1", True),
        ("1 2 3 ±1", "1 2 ±1", False),
        ("1 2 ±1", "1 2 3 ±1", False),
        ("[0.1, 0.2] ±0.1", "[0.2, 0.1] ±0.1", True),
        ("1.25e-07 ±1e-09", "1.26e-07 ±1e-09", True),
        ("1.25e-07 ±1e-09", "1.27e-07 ±1e-09", False),
        ("1e+06 ±1e+03", "1001000 ±1e+03", True),
        ("0.000 ±0.001", "-0.000 ±0.001", True),
        ("0.0005 ±0.001", "-0.0005 ±0.001", True),
        ("x  0.5 ±0.1", "x -0.1 ±0.1", False),
        ("nan ±1", "nan ±1", True),
        ("1 ±1", "nan ±1", False),
        ("nan ±1", "1 ±1", False),
        ("inf ±1", "inf ±1", True),
        ("inf 1 ±1", "inf 2 ±1", True),
        ("nan 1 ±1", "nan 2 ±1", True),
        ("inf ±1", "-inf ±1", False),
        ("1 ±1", "inf ±1", False),
        ("d64 1 ±1", "d65 1 ±1", False),
        ("[64x2] 1 ±1", "[65x2] 1 ±1", False),
        ("v1.2.3 1 ±1", "v1.2.4 1 ±1", False),
        ("1.2.3 1 ±1", "1.2.4 1 ±1", False),
        ("it is 0.5. ±0.1", "it is 0.6. ±0.1", True),
        ("1.0+2.0j ±1", "1.0+3.0j ±1", False),
        ("True ±1", "False ±1", False),
    ],
)
def test_a_line_is_compared_as_it_says(stored: str, new: str, close: bool) -> None:
    assert comparison.line_close(stored, new) is close


def test_a_text_agrees_line_by_line() -> None:
    assert comparison.agreed("a\n1 ±1\n", "a\n2 ±1\n") == "a\n1 ±1\n"
    assert comparison.agreed("a\n1 ±1\nb", "a\n2 ±1\nc") == "a\n1 ±1\nc"
    assert not comparison.text_close("a\n1 ±1", "a\n1 ±1\n")
    assert not comparison.text_close("a\n1 ±1", "a")


def png(colour: int = 0, dots: int = 0, size: int = 100) -> str:
    pixels = np.full((size, 100), colour, np.uint8)
    pixels.ravel()[:dots] = 255 - colour
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


def stream(text: str, name: str = "stdout") -> list:
    return [new_output("stream", name=name, text=text)]


def display(**data: str) -> list:
    return [
        new_output(
            "display_data",
            {name.replace("_", "/"): value for name, value in data.items()},
        )
    ]


def shows(**data: str) -> str:
    bundle = {name.replace("_", "/"): value for name, value in data.items()}
    return f"from IPython.display import display; display({bundle!r}, raw=True)"


def img(payload: str) -> str:
    return f'<img alt="a" src="data:image/png;base64,{payload}">'


def cell(
    source: str, outputs: list | None = None, count: int | None = 1, **metadata: Any
) -> Any:
    return new_code_cell(
        source, outputs=outputs or [], execution_count=count, metadata=metadata
    )


def write(path: Path, *cells: Any) -> Path:
    nbformat.write(new_notebook(cells=list(cells)), path)
    return path


UNRUN, UNCHECKED, DIFFER = "never run", "Nobody checks this cell", "Cell outputs differ"
FRAMES = """\
import matplotlib.pyplot as plt
from posenc_lib import figures
def draw(value):
    fig, ax = plt.subplots()
    ax.plot([0, value])
    return fig
def alt(value):
    return f"A line from 0 to {value}."
figures.Frames(draw, [1, 2], label="value", alt=alt, live=range(1, 9))"""

PASS = {
    "within its tolerance": cell("print('0.501 ±0.001')", stream("0.500 ±0.001\n")),
    "another picture": cell(
        shows(image_png=png(0), text_plain="a"),
        display(image_png=png(9), text_plain="a"),
    ),
    "another picture in HTML": cell(
        shows(text_html=img(png(0))), display(text_html=img(png(9)))
    ),
    "a semicolon hides the result": cell("1;"),
    "history is kept": cell(
        "1 + 1\nlen(In) > 1",
        [new_output("execute_result", {"text/plain": "True"}, execution_count=1)],
    ),
    "ignored with a reason": cell(
        "# NBVAL_IGNORE_OUTPUT\n# nbval: the time differs on every machine\nprint(1)",
        stream("2\n"),
    ),
    "nothing to run": cell("", count=None),
}
FAIL = {
    "beyond its tolerance": (
        DIFFER,
        cell("print('0.502 ±0.001')", stream("0.500 ±0.001\n")),
    ),
    "a wider tolerance than stored": (
        DIFFER,
        cell("print('0.55 ±0.1')", stream("0.50 ±0.01\n")),
    ),
    "no tolerance": (DIFFER, cell("print('0.501')", stream("0.500\n"))),
    "became nan": (DIFFER, cell("print('nan ±0.1')", stream("0.5 ±0.1\n"))),
    "never run": (UNRUN, cell("print(1)", count=None)),
    "never run, but with outputs": (UNRUN, cell("print(1)", stream("1\n"), count=None)),
    "outputs were cleared": (DIFFER, cell("print(1)")),
    "outputs are gone": (DIFFER, cell("1;", stream("1\n"))),
    "a warning is new": (DIFFER, cell("import sys; print(1, file=sys.stderr)")),
    "picture not stored": (
        DIFFER,
        cell(shows(image_png=png(), text_plain="a"), display(text_plain="a")),
    ),
    "picture not drawn": (
        DIFFER,
        cell(shows(text_plain="a"), display(image_png=png(), text_plain="a")),
    ),
    "one picture of two": (
        DIFFER,
        cell(
            shows(image_png=png(), text_plain="a"),
            display(image_png=png(), text_plain="a") * 2,
        ),
    ),
    "another description": (
        DIFFER,
        cell(
            shows(image_png=png(), text_plain="a"),
            display(image_png=png(), text_plain="b"),
        ),
    ),
    "other HTML": (
        DIFFER,
        cell(
            shows(text_html=img(png())),
            display(text_html=img(png()).replace("alt", "title")),
        ),
    ),
    "no picture in HTML": (
        DIFFER,
        cell(shows(text_html=img("")), display(text_html=img(png()))),
    ),
    "HTML not stored": (
        DIFFER,
        cell(shows(text_html="a", text_plain="a"), display(text_plain="a")),
    ),
    "skipped": (UNCHECKED, cell("# NBVAL_SKIP\n1 / 0")),
    "skipped by a tag": (UNCHECKED, cell("1 / 0", tags=["nbval-skip"])),
    "ignored": (UNCHECKED, cell("# NBVAL_IGNORE_OUTPUT\nprint(1)", stream("2\n"))),
    "ignored by a tag, short reason": (
        UNCHECKED,
        cell("# nbval: time differs here\nprint(1)", tags=["nbval-ignore-output"]),
    ),
    "raises": ("ZeroDivisionError", cell("1 / 0")),
}
SKIP = {
    "skipped with a reason": cell(
        "# NBVAL_SKIP\n# nbval: takes an hour on a machine\n1 / 0"
    )
}


def nbval(
    folder: Path, *options: str, **environment: str
) -> tuple[dict[str, str], str]:
    """Run nbval as a reader does.

    Return what became of each cell, and what was printed.
    """
    shutil.copy(ROOT / "notebooks" / "conftest.py", folder)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval",
        "-rA",
        "--color=no",
        "-p",
        "no:cacheprovider",
        *options,
        str(folder),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | environment,
    )
    outcomes = re.findall(
        r"^(PASSED|FAILED|SKIPPED|ERROR)\b.*?(\w+\.ipynb)(?:::Cell |:)(\d+)",
        done.stdout,
        re.MULTILINE,
    )
    return {
        f"{file} {number}": outcome for outcome, file, number in outcomes
    }, done.stdout


def test_nbval_passes_fails_and_skips_what_it_should(tmp_path: Path) -> None:
    write(tmp_path / "good.ipynb", *PASS.values())
    write(tmp_path / "bad.ipynb", *(cell for _, cell in FAIL.values()), *SKIP.values())
    outcomes, printed = nbval(tmp_path, "-n", "2", "--dist", "loadfile")
    assert {
        name: outcomes.get(f"good.ipynb {i}") for i, name in enumerate(PASS)
    } == dict.fromkeys(PASS, "PASSED"), printed
    assert {
        name: outcomes.get(f"bad.ipynb {i}") for i, name in enumerate(FAIL)
    } == dict.fromkeys(FAIL, "FAILED"), printed
    assert "1 skipped" in printed
    messages = re.findall(
        r"^Cell (\d+): (.*(?:\n.*)*?)(?=\n_{5}|\n={5}|\nCell )", printed, re.MULTILINE
    )
    told = {int(number): text for number, text in messages}
    assert [
        name
        for i, (name, (message, _)) in enumerate(FAIL.items())
        if message not in told[i]
    ] == []


def test_a_live_slider_validates_without_ipywidgets(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "slider.ipynb", cell(FRAMES, count=None))
    assert refresh.main([str(path)]) == 0
    [output] = nbformat.read(path, as_version=4).cells[0].outputs
    assert set(output.data) == {"text/html", "text/plain"}
    assert nbval(tmp_path)[0] == {"slider.ipynb 0": "PASSED"}

    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "ipywidgets.py").write_text("raise ImportError")
    assert nbval(tmp_path, PYTHONPATH=str(tmp_path / "without"))[0] == {
        "slider.ipynb 0": "PASSED"
    }


def outputs_of(path: Path) -> list[list]:
    return [cell.outputs for cell in nbformat.read(path, as_version=4).cells]


def test_refresh_writes_only_what_the_cells_say_and_return(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = (
        tmp_path / "kernels" / "python3" / "kernel.json"
    )  # a kernel of another environment, under the usual name
    other.parent.mkdir(parents=True)
    other.write_text(
        json.dumps({"argv": ["false"], "display_name": "Other", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    path = write(
        tmp_path / "a.ipynb",
        new_markdown_cell("# Title", metadata={"slideshow": 1}),
        cell(
            "import os, sys, time; print(1, flush=True); time.sleep(0.3); print(2)",
            count=7,
            tags=["a"],
            collapsed=True,
        ),
        cell("", count=3),
        cell("import ipywidgets; ipywidgets.IntSlider(description='n')", count=None),
        cell("1 / 0", tags=["raises-exception"]),
        cell("print(os.getcwd(), sys.executable, os.environ['OMP_NUM_THREADS'])"),
        new_markdown_cell("Text"),
        cell("1;"),
        cell("1;"),
    )
    raw = json.loads(path.read_text())
    raw["metadata"] = {
        "widgets": {},
        "kernelspec": {"name": "other", "display_name": "", "language": "R"},
    }
    raw["cells"][0]["id"] = "kept"
    raw["cells"][6]["id"] = "kept"
    del raw["cells"][2]["id"]
    path.write_text(json.dumps(raw))

    assert refresh.main([str(path)]) == 0
    first = path.read_bytes()
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor, notebook.metadata) == (
        4,
        5,
        refresh.METADATA,
    )
    assert [c.metadata for c in notebook.cells] == [
        {},
        {"tags": ["a"]},
        {},
        {},
        {"tags": ["raises-exception"]},
        *[{}] * 4,
    ]
    assert [c.get("execution_count") for c in notebook.cells] == [
        None,
        1,
        None,
        2,
        3,
        4,
        None,
        5,
        6,
    ]
    assert notebook.cells[0].id == "kept"
    assert len({c.id for c in notebook.cells}) == 9
    outputs = [c.get("outputs") for c in notebook.cells]
    assert outputs[1] == stream("1\n2\n")
    [widget] = outputs[3]
    assert set(widget.data) == {"text/plain"}
    assert (widget.output_type, widget.execution_count) == ("execute_result", 2)
    [error] = outputs[4]
    assert (error.ename, error.traceback) == ("ZeroDivisionError", [])
    assert outputs[5] == stream(
        f"{tmp_path} {sys.executable} {os.environ.get('OMP_NUM_THREADS', '1')}\n"
    )

    assert refresh.main([str(path)]) == 0
    assert path.read_bytes() == first
    assert "a.ipynb: unchanged (" in capsys.readouterr().out


def test_refresh_keeps_what_agrees_and_writes_what_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sources = {
        "kept": "print('0.500 ±0.001')",
        "beyond its tolerance": "print('0.500 ±0.001') # beyond",
        "other source": "print('0.500 ±0.001') # edited",
        "picture kept": shows(image_png=png(0), text_plain="a"),
        "picture of another look": shows(image_png=png(0), text_plain="b"),
    }
    stored = {
        "kept": stream("0.501 ±0.001\n"),
        "beyond its tolerance": stream("0.502 ±0.001\n"),
        "other source": stream("0.501 ±0.001\n"),
        "picture kept": display(image_png=png(0, dots=9), text_plain="a"),
        "picture of another look": display(image_png=png(60), text_plain="b"),
    }
    path = write(
        tmp_path / "a.ipynb", *(cell(source, count=None) for source in sources.values())
    )
    refresh.main([str(path)])
    fresh = dict(zip(sources, outputs_of(path), strict=True))
    notebook = nbformat.read(path, as_version=4)
    for place, outputs in zip(notebook.cells, stored.values(), strict=True):
        place.outputs = outputs
    notebook.cells[2].source = sources["other source"] = "print('0.500 ±0.001') # new"
    path.write_text(nbformat.writes(notebook) + "\n")
    before = path.read_bytes()
    capsys.readouterr()

    assert refresh.main(["--check", str(path)]) == 1
    assert path.read_bytes() == before
    assert "a.ipynb: would change outputs of [2], [3], [5] (" in capsys.readouterr().out
    assert refresh.main([str(path)]) == 0
    assert "a.ipynb: wrote outputs of [2], [3], [5] (" in capsys.readouterr().out
    expected = fresh | {name: stored[name] for name in ("kept", "picture kept")}
    assert dict(zip(sources, outputs_of(path), strict=True)) == expected
    assert refresh.main(["--check", str(path)]) == 0


def test_one_notebook_that_fails_does_not_cost_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    bad = write(
        tmp_path / "bad.ipynb",
        cell("1"),
        cell(""),
        cell("{}['no such key']"),
        cell("2"),
    )
    good = write(tmp_path / "good.ipynb", cell("print(3)", count=None))
    (tmp_path / "broken.ipynb").write_text("not JSON")
    before = bad.read_bytes()
    paths = [
        str(tmp_path / name)
        for name in ("bad.ipynb", "broken.ipynb", "missing.ipynb", "good.ipynb")
    ]
    assert refresh.main(paths) == 1
    assert bad.read_bytes() == before
    assert outputs_of(good) == [stream("3\n")]
    lines = capsys.readouterr().out.splitlines()
    assert [
        re.sub(r" \(\d+\.\d s\)$", "", line.removeprefix(f"{tmp_path}/"))
        for line in lines
    ] == [
        "bad.ipynb: FAILED: cell [2]: KeyError: 'no such key'",
        "broken.ipynb: FAILED: is not a notebook that can be read: Expecting value: "
        "line 1 column 1 (char 0)",
        "missing.ipynb: FAILED: is not a notebook that can be read: "
        f"[Errno 2] No such file or directory: '{tmp_path / 'missing.ipynb'}'",
        "good.ipynb: wrote outputs of [1]",
    ]


def test_a_notebook_that_is_too_large_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.ipynb", cell("1;"), cell("print('x' * 50_000)"))
    before = path.read_bytes()
    monkeypatch.setattr(refresh, "LIMIT", 40_000)
    assert refresh.main([str(path)]) == 1
    assert path.read_bytes() == before
    assert (
        "has 0.05 MB, the limit is 0.04: cell [2] alone has 0.05;"
        in capsys.readouterr().out
    )
    monkeypatch.setattr(refresh, "LIMIT", 60_000)
    monkeypatch.setattr(refresh, "LIMIT_ALL", 40_000)
    assert refresh.main([str(path)]) == 1
    assert (
        "all notebooks together have 0.1 MB, the limit is 0.0"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("stored", "new", "same"),
    [
        (png(0), png(0), True),
        (png(0), png(12), True),
        (png(0), png(20), False),
        (png(0), png(0, dots=9), True),
        (png(0), png(0, dots=11), False),
        (png(0), png(0, size=99), False),
    ],
)
def test_pictures_are_the_same_to_the_eye(stored: str, new: str, same: bool) -> None:
    for pack in (
        lambda payload: display(image_png=payload),
        lambda payload: display(text_html=img(payload)),
    ):
        assert refresh.agree(pack(stored), pack(new)) is same


def test_outputs_of_another_kind_or_alt_do_not_agree() -> None:
    outputs = display(image_png=png(), text_plain="a")
    other_alt = [
        new_output(
            "display_data", outputs[0].data, metadata={"image/png": {"alt": "b"}}
        )
    ]
    assert refresh.agree(outputs, display(image_png=png(), text_plain="a"))
    assert not refresh.agree(outputs, other_alt)
    assert not refresh.agree(outputs, display(text_plain="a"))
    assert not refresh.agree(outputs, outputs * 2)
    assert not refresh.agree(outputs, [])


def test_the_books_notebooks_are_small() -> None:
    sizes = [path.stat().st_size for path in refresh.NOTEBOOKS.glob("*.ipynb")]
    assert max(sizes, default=0) <= 900_000
    assert sum(sizes) <= 15_000_000
