"""Run a notebook and keep what its cells show: printed text, the last value as text or HTML, and figures as PNG.

    python examples/execute.py which_heads_does_each_task_live_on.ipynb ...

The metadata get a hash of the code, so that a test sees when outputs are older than the cells they stand under.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


def code_hash(notebook: dict[str, Any]) -> str:
    """What the outputs of a notebook depend on."""
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256("\0".join(cells).encode()).hexdigest()


def run_cell(cell: Cell, names: dict[str, Any], where: str) -> list[Cell]:
    """The outputs of a cell, as a notebook keeps them."""
    tree = ast.parse("".join(cell["source"]), where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    text = printed.getvalue()
    outputs = [{"output_type": "stream", "name": "stdout", "text": text.splitlines(True)}] if text else []
    if value is not None and not _is_figure(value):
        outputs.append({"output_type": "execute_result", "data": _shown(value), "metadata": {}})
    return outputs + figures()


def _is_figure(value: Any) -> bool:
    return type(value).__module__.startswith("matplotlib")


def _shown(value: Any) -> dict[str, list[str]]:
    html = getattr(value, "_repr_html_", lambda: None)()
    return {"text/plain": str(value).splitlines(True)} | ({"text/html": html.splitlines(True)} if html else {})


def figures() -> list[Cell]:
    """The open figures of pyplot as PNG; they are closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    outputs = []
    for number in pyplot.get_fignums() if pyplot else ():
        content = io.BytesIO()
        pyplot.figure(number).savefig(content, format="png", dpi=80, metadata={"Software": None})
        data = {"image/png": base64.b64encode(content.getvalue()).decode(), "text/plain": ["<Figure>"]}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
        pyplot.close(number)
    return outputs


def execute(path: Path) -> None:
    """Run all cells of a notebook and write it with their outputs."""
    notebook, names = json.loads(path.read_text()), {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["outputs"] = run_cell(cell, names, f"{path.name} cell {count}")
            cell["execution_count"] = count
            for output in cell["outputs"]:
                if output["output_type"] == "execute_result":
                    output["execution_count"] = count
            print(f"{path.name}: cell {count}", file=sys.stderr, flush=True)
    notebook["metadata"]["headwise"] = {"code": code_hash(notebook)}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        execute(Path(name))
