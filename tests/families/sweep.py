"""Every model type of transformers, tiny and random: are its heads found, and do gates close them?

python tests/families/sweep.py            # all types, half an hour; writes verdicts.json and docs/families.md
python tests/families/sweep.py bert llama # some of them, in place of what was known
python tests/families/sweep.py --quick    # without exports and gradients
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FILE, PAGE = HERE / "verdicts.json", HERE.parent.parent / "docs" / "families.md"
SECONDS = 300  # of computing, for one type
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
UNTRIED = "; exports and gradients were not tried"
DETACHED = "the model detaches something: with nothing detached, autograd agrees with finite differences"
LEGEND = """`text 2/3 x 4 x 8, cut, masked, sliced` is a stack named text: two of three layers have attention, with up
to 4 heads of size up to 8; a copy with single heads cut, and one with gates folded in, answer as the gated model
does, and so do the exports that are named. Where transformers does not open even the whole model again as it was (its
configuration does not survive being saved, or loading changes weights), exports could not be judged. To update this
page: `python tests/families/sweep.py`.
""".splitlines()
ALIKE = """Gates of ones leave the answers of each type bit-identical. The gradient of the sum of squares of all
answers by the gate of a stack's first head in its last layer was compared with central differences (step 1e-4),
everything in float64, in {} stacks. They agree within 1e-4 of their size, but in these:
"""
EARLIER = """Ten types had seemed to differ in an earlier comparison. Of these idefics2, mistral3 and jetmoe have
norms that compute in float32 in any model, so small steps measured their rounding; phimoe ran its experts in a kernel
that takes no float64 (in training, its router has a gradient of its own making); owlv2's embeddings have length 1, so
the sum of their squares is constant, and the gradient 0; mask2former thresholds masks, which steps of 1e-4 cross and
steps of 1e-6 do not; rt_detr and d_fine hand on detached boxes, and their samples of one picture met a fault of torch
2.13 in batch norms ([robustness](robustness.md)), which gated models now avoid. In pp_doclayout_v4 steps of 1e-4 give
-0.03071, 0.3 % from the gradient; smaller steps are erratic.
""".splitlines()


def types() -> list[str]:
    """Every type that has a configuration: models, and parts that are models of their own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def judge(family: str, quick: bool = False) -> tuple[str, str]:
    """The verdict on a type, and why; quickly: without exports and gradients."""
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
    kind, why = verdict(model, thorough=not quick)
    why += UNTRIED if quick and kind == "right" else ""
    return ("no attention", "") if kind == "refused" and NO_ATTENTION in why else (kind, _short(kind, why))


def _short(kind: str, why: str) -> str:
    return why.split(". Try: ")[0].split("out of reach: ")[-1][:220] if kind != "right" else why


def _line(error: BaseException) -> str:
    """The error in one line, without paths of this machine."""
    first = next(iter(str(error).strip().splitlines()), "")
    first = re.sub(r" from '/[^']*'", "", first)
    return f"{type(error).__name__}: {first}"[:160]


def _within(family: str, quick: bool = False) -> tuple[str, str, str]:
    """The verdict; the quick one where all takes too long, and a crash where that does too."""
    signal.signal(signal.SIGPROF, _stop)
    error: BaseException = TimeoutError()
    for less in (quick, True):
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            return (family, *judge(family, less))
        except BaseException as each:
            error = each
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if less or not isinstance(error, TimeoutError):
            break
    return family, "crash", _line(error)


def _stop(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} seconds of computing")


def verdicts(families: Iterable[str], processes: int = 1, quick: bool = False) -> Iterator[tuple[str, str, str]]:
    judged = partial(_within, quick=quick)
    if processes == 1:
        yield from map(judged, families)
        return
    queue = iter(families)
    while some := list(islice(queue, 50 * processes)):  # new processes free memory; max_tasks_per_child can hang
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            yield from pool.map(judged, some)


def page(found: dict[str, list[str]]) -> str:
    """The table of all types, the counts on top."""
    import torch
    import transformers

    counts = Counter(kind for kind, _ in found.values())
    built = len(found) - counts["not built"]
    right = [why for kind, why in found.values() if kind == "right"]
    cut = [why for why in right if ", cut" in why]
    tried = [why for why in cut if UNTRIED not in why]
    saved = sum(all(", masked, sliced" in part for part in why.split("; ") if ", cut" in part) for why in tried)
    lines = [
        "# Model types",
        "",
        f"Every model type of transformers {transformers.__version__}, and every part of one with a configuration of "
        f"its own, built from a tiny random configuration (torch {torch.__version__.split('+')[0]}).",
        "",
        f"Of {len(found)} types, {built} could be built and {built - counts['no attention']} of those have attention. "
        f"Heads are right in {counts['right']}, wrong in {counts['wrong']}. Single heads can be cut in {len(cut)}. "
        f"Exports were tried in {len(tried)} of these: in {saved} every such stack was written in both forms, `masked` "
        "and `sliced`, opened again, and answered as the gated model; the table says why not in the others.",
        "",
        "| verdict | types | meaning |",
        "|---|---:|---|",
        *(f"| {kind} | {counts[kind]} | {MEANING[kind]} |" for kind in ORDER if counts[kind]),
        "",
        *LEGEND,
        "",
        *gradients(found),
        "| type | verdict | stacks, or the reason |",
        "|---|---|---|",
        *(f"| {name} | {kind} | {_cell(why)} |" for name, (kind, why) in sorted(found.items())),
    ]
    return "\n".join(lines) + "\n"


def gradients(found: dict[str, list[str]]) -> list[str]:
    """Where gradients of gates are not finite differences, and why."""
    tried = [(name, why) for name, (kind, why) in sorted(found.items()) if kind == "right" and UNTRIED not in why]
    stacks = [(name, part) for name, why in tried for part in why.split("; ")]
    other = [
        (name, part.split(" ")[0], *_numbers(part), DETACHED if "(detached)" in part else "not explained")
        for name, part in stacks
        if _numbers(part)
    ]
    none = [
        f"{name} ({part.split('no gradient (')[1].rstrip(')')})" for name, part in stacks if "no gradient (" in part
    ]
    return [
        "## Gradients",
        "",
        *ALIKE.format(len(stacks)).splitlines(),
        "",
        "| type | stack | gradient | finite differences | why |",
        "|---|---|---:|---:|---|",
        *(f"| {' | '.join(row)} |" for row in other),
        "",
        *([f"No gradient at all: {'; '.join(none)}.", ""] if none else []),
        *EARLIER,
        "",
    ]


def _numbers(part: str) -> list[str]:
    return re.findall(r"gradient (\S+) against ([^\s,;]+)", part)[0] if "gradient" in part and "against" in part else []


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _keep(found: dict[str, list[str]]) -> None:
    FILE.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


def main() -> None:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    quick, chosen = "--quick" in sys.argv, [name for name in sys.argv[1:] if name != "--quick"]
    found = json.loads(FILE.read_text()) if chosen else {}
    for name, kind, why in verdicts(chosen or types(), 1 if chosen else os.cpu_count() or 1, quick):
        print(f"{name}: {kind} {why}", flush=True)
        found[name] = [kind, why]
        if chosen:
            _keep(found)
    _keep(found)
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
