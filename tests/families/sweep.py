"""Every model type of transformers, tiny and random: are its heads found, and do gates close them?

python tests/families/sweep.py            # all types, twenty minutes; writes verdicts.json and docs/families.md
python tests/families/sweep.py bert llama # some of them, in place of what was known
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FILE, PAGE = HERE / "verdicts.json", HERE.parent.parent / "docs" / "families.md"
SECONDS = 300  # for one type
NO_ATTENTION = "no attention was seen"
ORDER = ("right", "unproven", "refused", "no attention", "not built", "wrong", "crash")
MEANING = {
    "right": "found and proven; gates equal closing the head inside its attention call",
    "unproven": "found by name: no input could be made for the tiny model, so nothing was proven",
    "refused": "not accessible, with the reason",
    "no attention": "no attention heads, and refused",
    "not built": "no tiny model could be built here, often because of a missing package",
    "wrong": "accepted, and gates do something else",
    "crash": "an error that is no answer",
}


GRADIENTS = """## Gradients

Gates of ones leave the answers of each type bit-identical. The gradient with respect to a gate was compared with finite
differences for the types in which it had seemed to differ; what was found, and how it is explained:

| type | gradient | finite differences | why |
|---|---:|---:|---|
| idefics2, mistral3, jetmoe and others with Llama's norms | 1.7338 | 1.7338 at a step of 1e-2, 1.50 at 1e-5 | \
norms compute in float32 even in a float64 model: small steps measure its rounding |
| owlv2 | 0 | 0 | embeddings of length 1: the sum of their squares is constant; over all it returns, both are -4.990 |
| rt_detr, d_fine: heads of the encoder | 0.000413 | -0.000114 | the model detaches what it hands to its decoder: \
autograd leaves out those paths, finite differences do not; heads of the decoder agree |
| phimoe | -5.18996 | -5.18987 | agrees with `set_experts_implementation("eager")`, as the default kernel takes \
no float64; in training, its router has a gradient of its own making |

(Sum of squares of all answers, last layer, first head, tiny models in float64.)
""".replace("\\\n", "").split("\n")


def types() -> list[str]:
    """Every type that has a configuration: models, and parts that are models of their own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def judge(family: str) -> tuple[str, str]:
    """The verdict on a type, and why."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    sys.path.insert(0, str(HERE.parent))
    import torch
    import transformers

    from families.build import build
    from families.check import verdict

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        model = build(family)
    except Exception as error:
        return "not built", _line(error)
    kind, why = verdict(model)
    return ("no attention", "") if kind == "refused" and NO_ATTENTION in why else (kind, _short(kind, why))


def _short(kind: str, why: str) -> str:
    return why.split(". Try: ")[0].split("out of reach: ")[-1][:220] if kind != "right" else why


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


def _within(family: str) -> tuple[str, str, str]:
    """The verdict, or a crash where it takes too long."""
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(SECONDS)
    try:
        return (family, *judge(family))
    except BaseException as error:
        return family, "crash", _line(error)
    finally:
        signal.alarm(0)


def _stop(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} seconds")


def verdicts(families: Iterable[str], processes: int = 1) -> Iterator[tuple[str, str, str]]:
    if processes == 1:
        yield from map(_within, families)
        return
    with ProcessPoolExecutor(processes, max_tasks_per_child=50) as pool:
        yield from pool.map(_within, families)


def page(found: dict[str, list[str]]) -> str:
    """The table of all types, the counts on top."""
    import torch
    import transformers

    counts = Counter(kind for kind, _ in found.values())
    built = len(found) - counts["not built"]
    cut = sum(kind == "right" and ", cut" in why for kind, why in found.values())
    lines = [
        "# Model types",
        "",
        f"Every model type of transformers {transformers.__version__}, and every part of one with a configuration of "
        f"its own, built from a tiny random configuration (torch {torch.__version__.split('+')[0]}).",
        "",
        f"Of {len(found)} types, {built} could be built and {built - counts['no attention']} of those have attention. "
        f"Heads are right in {counts['right']}, wrong in {counts['wrong']}. Single heads can be cut in {cut}.",
        "",
        "| verdict | types | meaning |",
        "|---|---:|---|",
        *(f"| {kind} | {counts[kind]} | {MEANING[kind]} |" for kind in ORDER if counts[kind]),
        "",
        "`text 2/3 x 4 x 8, cut` is a stack named text: two of three layers have attention, with up to 4 heads of size "
        "up to 8; a copy with single heads cut, and one with gates folded in, answer as the gated model does. To "
        "update this page: `python tests/families/sweep.py`.",
        "",
        *GRADIENTS,
        "| type | verdict | stacks, or the reason |",
        "|---|---|---|",
        *(f"| {name} | {kind} | {_cell(why)} |" for name, (kind, why) in sorted(found.items())),
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def main() -> None:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    chosen = sys.argv[1:]
    found = json.loads(FILE.read_text()) if chosen else {}
    for name, kind, why in verdicts(chosen or types(), 1 if chosen else os.cpu_count() or 1):
        print(f"{name}: {kind} {why}", flush=True)
        found[name] = [kind, why]
    FILE.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
