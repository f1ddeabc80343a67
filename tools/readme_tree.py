"""Write the tree of the project into README.md: each file with the first sentence of its docstring.

`python tools/readme_tree.py` after a file was added, moved or explained anew; a test compares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- tree: written by tools/readme_tree.py -->", "<!-- tree: end -->"
WIDTH = 26

OTHER = {
    "pyproject.toml": "dependencies, and the settings of ruff, mypy and pytest",
    "constraints.txt": "the exact version of every package",
    "Makefile": "run · test · check · bench · record",
    ".streamlit/config.toml": "Streamlit's settings, the palette in light and dark",
    ".ci/run": "a clean checkout on a new Debian machine, up to the test results",
}
FOLDERS = {
    "core": "the science: no Streamlit, no plotly, usable in a notebook",
    "pages": "one file, one question",
    "pages/views": "what pages share: frame, settings, controls, charts, and the data of each component",
    "tools": "scripts for us, not for learners",
}
ASSETS = {
    "assets/components/": "what is drawn and computed in the browser: one folder each, html, css and js",
    "assets/text/en, ja": "every sentence on screen, the same keys in both languages",
    "assets/runs/": "recorded real runs; the first page opens on one",
    "assets/data/": "facts with their sources: models, accelerators, definitions",
    "tests/": "one file per module; browser/ in a real Chromium; bench/ behind `make bench`",
}


def tree() -> str:
    return "\n".join(
        [_line("app.py", purpose(ROOT / "app.py")), *_modules(), *_lines(ASSETS), *_lines(OTHER)]
    )


def _modules() -> Iterator[str]:
    for folder, words in FOLDERS.items():
        yield _line(f"{folder}/", words)
        for path in sorted((ROOT / folder).glob("*.py"), key=_place):
            if path.name != "__init__.py":
                yield "  " + _line(path.name, purpose(path), WIDTH - 2)


def _place(path: Path) -> tuple[int, str]:
    number = path.stem.partition("_")[0]
    return (int(number) if number.isdigit() else 0, path.name)


def _lines(entries: dict[str, str]) -> Iterator[str]:
    return (_line(name, words) for name, words in entries.items())


def _line(name: str, words: str, width: int = WIDTH) -> str:
    return f"{name:<{width}}{words}"


def purpose(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s", paragraph)[0].removesuffix(".")


def main() -> None:
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(f"{before}{BEGIN}\n```\n{tree()}\n```\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
