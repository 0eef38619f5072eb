"""Records of the specialization recipe, selected by their configs and joined over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from headwise.io.records import Record, Results
from headwise.papers.specialization import published as paper
from headwise.papers.specialization.settings import (
    CONTROLS,
    CORPUS_FIVE,
    CORPUS_GLUE,
    FIVE,
    GLUE,
    HUB,
    OWN,
    RELEASED,
    UNSAID,
)

ALPHA = 0.3
LABELS = {
    **{"mnli": "MNLI", "mnli_mm": "MNLI-mm", "qqp": "QQP", "qnli": "QNLI", "agnews": "AG", "agpair": "AG-Pair"},
    **{"sst2": "SST-2", "cola": "CoLA", "mrpc": "MRPC", "rte": "RTE", "stsb": "STS-B"},
    **{"scitail": "SciTail", "imdb": "IMDB"},
}
CHANCE = {"mnli": 1 / 3, "qnli": 0.5, "agnews": 0.25, "sst2": 0.5, "rte": 0.5}  # accuracies; F1 has no such floor
NEAR = 0.05
TWO_TEXTS = {"mnli", "qqp", "qnli", "corpus.entailment", "corpus.entailment.es"}  # of FIVE and CORPUS_FIVE


def label(task: str) -> str:
    """A task's name in the paper, or its own."""
    return LABELS.get(task, task)


class Trained(NamedTuple):
    """A training, summarized."""

    model: str
    tasks: tuple[str, ...]
    seed: int
    method: str
    sampling: str
    frozen: bool
    setting: tuple  # other settings of the plan: see SETTING


SETTING = ("epochs", "steps", "lr", "head_lr", "batch_size", "max_examples", "clip", "schedule")


def trained(config: Mapping[str, Any], own: str = "") -> Trained:
    """What a training's config says; ``own`` names the method of a work of its own."""
    plan = config["plan"]
    method = own or method_name(config.get("method"), config.get("output_heads", "linear"))
    model, tasks = config["model"], tuple(config["tasks"])
    setting = tuple(plan.get(name) for name in SETTING)
    return Trained(model, tasks, plan["seed"], method, plan["sampling"], plan["train"] == "heads", setting)


def method_name(method: Mapping[str, Any] | None, output_heads: str = "linear") -> str:
    """A method and its settings as the tables name them."""
    if not method:
        return "multi"
    if method["name"] == "released_settings":
        return f"{'multi' if method['alpha'] == 1 else 'iat'}: {_unsaid(method, output_heads)}"
    if method["name"] == "iat_released":
        return next(
            (f"released: {n}" for n, s in (RELEASED | CONTROLS).items() if s.items() <= method.items()), "released"
        )
    if own := [name for name, settings in OWN.items() if settings.items() <= method.items()]:
        return max(own, key=lambda name: len(OWN[name]))  # factors may be tied as well
    if method["name"] != "iat":
        return str(method["name"]).replace("_", " ")
    alpha, delta, choose = method.get("alpha", 0.3), method.get("delta", 0.1), method.get("choose", "top")
    if isinstance(alpha, str) or isinstance(delta, str):
        return "iat, α and δ untuned"
    held = "" if method.get("freeze", "update") == "update" else ", gradients zeroed"
    held += ", output rows held" if method.get("params", "qkv") == "qkvo" else ""
    if delta == 1.0:
        return f"ticket-share{held}"
    if (alpha, delta) == (0.3, 0.1):
        return {"top": "iat", "random": "random heads", "bottom": "bottom heads"}[choose] + held
    return f"iat α = {alpha:g}, δ = {delta:g}{held}"


def _unsaid(method: Mapping[str, Any], output_heads: str) -> str:
    """Which of the settings that the paper does not name a training has."""
    asked: dict[str, dict[str, Any]] = {"shape": {} if output_heads == "linear" else {"output_heads": output_heads}}
    asked["method"] = {name: True for name in ("grades", "redraw") if method.get(name)}
    same = (n for n, setting in UNSAID.items() if all(setting.get(part, {}) == one for part, one in asked.items()))
    return next(same, "other settings")


class Lesioned(NamedTuple):
    """One model's importance scores and lesions."""

    trained: Trained
    result: Mapping[str, Any]

    def entry(self, on: str = "") -> Mapping[str, Any]:
        """Its D at α = 0.3: by the tasks' own metrics, or on accuracy or chance_corrected."""
        part = self.result["dissociation"]
        entries = part["on"].get(on, []) if on else part["D"]
        return entries[self.at] if entries else {}

    def on_accuracy(self, task: str) -> float | None:
        """A task's D on accuracy in percent, by its own metric where there is no other, as far as it is defined."""
        value = (self.entry("accuracy") or self.entry())["tasks"].get(task, {}).get("value")
        return None if value is None else 100 * value

    @property
    def at(self) -> int:
        return int(np.abs(np.array(self.result["dissociation"]["fractions"]) - ALPHA).argmin())

    @property
    def fell(self) -> bool:
        """Whether training failed: with all heads open, every task predicts a single class."""
        return bool(self.cells("collapsed")[:, 0].all())

    def cells(self, name: str = "performance") -> np.ndarray:
        """Tasks by lesions at α = 0.3."""
        return np.array(self.result["dissociation"][name][self.at])

    def scores(self, task: str) -> np.ndarray:
        """A task's importance, layers by heads."""
        return np.array(self.result["importance"][task]["scores"], float)

    def floored(self, task: str) -> bool:
        """Whether the task's own lesion leaves it within five points of chance or with one answer: D is cut off there.

        What is lost by other lesions may then be as much as all there is to lose, and D says little about heads.
        """
        row, column = self.trained.tasks.index(task), 1 + self.trained.tasks.index(task)
        near = task in CHANCE and self.cells()[row, column] <= CHANCE[task] + NEAR
        return bool(near or self.cells("collapsed")[row, column])

    @property
    def heads(self) -> int:
        """How many the model has."""
        return self.scores(self.trained.tasks[0]).size

    def top(self, task: str, alpha: float = ALPHA) -> np.ndarray:
        """A task's top heads: the same floor and the same order of ties as `headwise.heads.selection.top`."""
        flat = np.nan_to_num(self.scores(task), nan=-np.inf).ravel()
        mask = np.zeros(flat.size, bool)
        mask[np.argsort(-flat, kind="stable")[: int(alpha * flat.size + 1e-6)]] = True
        return mask.reshape(self.scores(task).shape)


class Records:
    """All records of a folder, read once."""

    def __init__(self, results: Results):
        self.all = list(results)
        made = [trained(r.config) for r in self.all if r.work == "train"]
        self.usual = _settings(t for t in made if _on_glue(t.tasks))
        self._others = _settings(t for t in made if not _on_glue(t.tasks))
        measured: dict[Trained, list[Record]] = {}
        for r in self.all:
            if r.work == "lesions" and r.config["trained"] and r.config["by"] == "gradient":
                measured.setdefault(trained(r.config["training"]), []).append(r)
        # Where a training was made and lesioned again, its first numbers stay in the tables.
        lesioned = [Lesioned(trained(r[0].config["training"]), r[0].result) for r in measured.values()]
        self._newest = [Lesioned(trained(r[-1].config["training"]), r[-1].result) for r in measured.values()]
        lesioned = [one for one in lesioned if self._usual(one.trained)]
        self.lesioned = [one for one in lesioned if not one.fell]
        fell = [one.trained for one in lesioned if one.fell]  # heads of a model that learned nothing would dilute D
        fell += [trained(r.config) for r in self.all if r.work == "train" and _fell(r.result["scores"])]
        self.fell = list(dict.fromkeys(fell))

    def _usual(self, one: Trained, setting: tuple | None = None) -> bool:
        """Whether a training has this setting, or the one most of its model's have: others stand in their own table.

        GLUE's tasks together are counted apart: a model may have fewer rows of them.
        """
        seen = (self.usual if _on_glue(one.tasks) else self._others).get(one.model)
        return not seen or one.setting == (setting or seen.most_common(1)[0][0])

    @cached_property
    def _branched(self) -> list[Trained]:
        """Trainings with plain training's own losses until they branch off: no noise of retraining is in a gap."""
        made = {trained(r.config): r for r in self.all if r.work == "train" and not _fell(r.result["scores"])}
        branched = []
        for one, record in made.items():
            if isinstance((record.config["method"] or {}).get("delta"), str):
                continue  # where it begins is not known before
            delta, base = (record.config["method"] or {}).get("delta", 1.0), made.get(one._replace(method="multi"))
            until = record.result["steps"] * (1 - delta)
            losses = _losses(record, until)
            if losses and base and losses == _losses(base, until):
                branched.append(one)
        return branched

    def same_start(self, model: str, sampling: str, method: str, setting: tuple | None = None) -> int:
        """In how many seeds a method branched off from the plain training it is set against."""
        asked = (model, sampling, method)
        return sum((t.model, t.sampling, t.method) == asked and self._usual(t, setting) for t in self._branched)

    def of(self, work: str) -> list[Record]:
        """Records of a work of this recipe."""
        return [record for record in self.all if record.work == f"specialization.{work}"]

    def trained_on(self, model: str) -> str:
        """How much of GLUE a model was trained and scored on, as a sentence; empty where it has no such training."""
        seen = self.usual.get(model)
        if not seen:
            return ""
        setting = seen.most_common(1)[0][0]
        said = dict(zip(SETTING, setting))
        rows = f"at most {said['max_examples']:,} rows" if said["max_examples"] else "all rows"
        amount = f"{said['steps']} steps" if said["steps"] else f"{said['epochs']} epochs"
        made = (r for r in self.all if r.work == "train" and r.config["model"] == model and _on_glue(r.config["tasks"]))
        dev = [r.config["dev"] for r in made if r.config.get("dev") and trained(r.config).setting == setting]
        scored = f", scored on at most {max(dev):,} development rows" if dev else ""
        return f"Trained on {rows} of each task, {amount}, learning rate {said['lr']:g}{scored}."

    def alike_on_glue(self) -> list[str]:
        """The models that were trained on GLUE in the way most were: what is pooled over models is theirs."""
        commonest = sum(self.usual.values(), Counter()).most_common(1)
        return [m for m, seen in self.usual.items() if commonest and seen.most_common(1)[0][0] == commonest[0][0]]

    def untuned(self, model: str) -> str:
        """What important-head training chose in place of α and δ, as a sentence."""
        made = (r.result.get("chosen") for r in self.all if r.work == "train" and r.config["model"] == model)
        choices = [chosen for chosen in made if chosen]
        alphas = [alpha for chosen in choices for alpha in chosen["alpha"].values()]
        deltas = [chosen["delta"] for chosen in choices]
        if not alphas:
            return ""
        chosen = [f"{name} from {min(all_):.2f} to {max(all_):.2f}" for name, all_ in (("α", alphas), ("δ", deltas))]
        return f"It chose {chosen[0]} by task and {chosen[1]}."

    def values_of(self, model: str, name: str, fixed: Mapping[str, Any]) -> list[float]:
        """The values that a setting of a method has in a model's trainings where the method has these, in order."""
        used = [r.config.get("method") or {} for r in self.all if r.work == "train" and r.config["model"] == model]
        values = {one[name] for one in used if name in one and fixed.items() <= one.items()}
        return sorted(value for value in values if not isinstance(value, str))

    def models(self) -> list[str]:
        """Model names in the order in which they came."""
        known = (r.config.get("model") or r.config.get("training", {}).get("model") for r in self.all)
        return [name for name in dict.fromkeys(known) if name]

    def five(self, model: str, method: str = "multi", frozen: bool = False) -> list[Lesioned]:
        """The lesions of all tasks trained together, one for each seed."""
        sets = [set(FIVE), set(CORPUS_FIVE)]
        by_seed = {
            t.seed: lesioned
            for lesioned in self.lesioned
            if (t := lesioned.trained).model == model
            and set(t.tasks) in sets
            and (t.method, t.frozen) == (method, frozen)
        }
        return list(by_seed.values())

    def on_glue(self, model: str, method: str = "multi") -> list[Lesioned]:
        """The lesions of all of GLUE's tasks trained together, one for each seed."""
        sets, by_seed = [set(GLUE), set(CORPUS_GLUE)], dict[int, Lesioned]()
        for one in self.lesioned:
            t = one.trained
            if (t.model, t.method, t.sampling) == (model, method, "annealed") and set(t.tasks) in sets:
                by_seed[t.seed] = one
        return list(by_seed.values())

    def head_sets(self, model: str) -> list[Lesioned]:
        """The newest lesions of all tasks trained together that have tests over random head sets, one for each seed."""
        usual = {one.trained for one in self.five(model)}
        return [one for one in self._newest if one.trained in usual and one.result["dissociation"].get("random")]

    def pairs(self, model: str, frozen: bool = False) -> dict[tuple[str, str], list[Lesioned]]:
        """The lesions of every two tasks trained together, by pair and seed."""
        by_pair: dict[tuple[str, str], dict[int, Lesioned]] = {}
        for one in self.lesioned:
            t = one.trained
            if t.model == model and len(t.tasks) == 2 and (t.frozen, t.method) == (frozen, "multi"):
                by_pair.setdefault((t.tasks[0], t.tasks[1]), {})[t.seed] = one
        return {pair: list(seeds.values()) for pair, seeds in by_pair.items()}

    def glue(self, setting: tuple | None = None) -> dict[tuple[str, str, str], dict[int, dict[str, float]]]:
        """Development scores under the usual setting, or another: (model, sampling, method) to seed to task."""
        by_method: dict[tuple[str, str, str], dict[int, dict[str, float]]] = {}
        sets = [set(GLUE), set(CORPUS_GLUE)]
        other = {r.config["of"]: r.result["scores"] for r in self.of("mismatched")}
        own = {"mtdnn": "mt-dnn", "distilled": "distilled"}
        for r in self.all:
            name = own.get(r.work.rpartition(".")[2], "")
            if (r.work == "train" or name) and set(r.config["tasks"]) in sets and not _fell(r.result["scores"]):
                t = trained(r.config, name)
                if not (self._usual(t, setting) or (name and setting is None)):
                    continue
                scores = {**r.result["scores"], **other.get(r.key, {})}
                sampling = "annealed" if name else t.sampling  # MT-DNN samples in its own way and is shown separately
                by_method.setdefault((t.model, sampling, t.method), {})[t.seed] = _values(scores)
        for (model, seed), scores in ({} if setting else self._singles(other)).items():
            if any(names <= set(scores) for names in sets):
                by_method.setdefault((model, "annealed", "single"), {})[seed] = scores
        return by_method

    def _singles(self, other: Mapping[str, Any]) -> dict[tuple[str, int], dict[str, float]]:
        """Scores of models trained on one task each, put together."""
        by_run: dict[tuple[str, int], dict[str, float]] = {}
        for r in self.all:
            if r.work == "train" and len(r.config["tasks"]) == 1 and not r.config["method"]:
                t = trained(r.config)
                if t.tasks[0] in (*GLUE, *CORPUS_GLUE) and self._usual(t):
                    scores = _values({**r.result["scores"], **other.get(r.key, {})})
                    by_run.setdefault((t.model, t.seed), {}).update(scores)
        return by_run


def _on_glue(tasks: Iterable[str]) -> bool:
    return set(tasks) in (set(GLUE), set(CORPUS_GLUE))


def _settings(made: Iterable[Trained]) -> dict[str, Counter[tuple]]:
    """How often a model's trainings have each setting."""
    counts: dict[str, Counter[tuple]] = {}
    for one in made:
        counts.setdefault(one.model, Counter())[one.setting] += 1
    return counts


def _fell(scores: Mapping[str, Any]) -> bool:
    """Whether training failed: two tasks have exactly the 0 that MCC and F1 give to one answer for all rows."""
    return sum(score["value"] == 0.0 for score in scores.values()) > 1


def _losses(record: Record, until: float) -> list[tuple[str, int, float]]:
    """A training's losses before a step."""
    curves = record.result.get("curves", {})
    points = [(task, *at) for task, c in sorted(curves.items()) for at in zip(c["step"], c["loss"])]
    return [point for point in points if point[1] < until - 1]  # where a branch begins is rounded


def _values(scores: Mapping[str, Any]) -> dict[str, float]:
    return {task: score["value"] for task, score in scores.items()}


def real(tasks: Iterable[str]) -> bool:
    """Whether these are the paper's tasks: only then are its numbers shown."""
    return all(task in LABELS for task in tasks)


def beside(model: str, table: Mapping[Any, Any], otherwise: str = "bert-base") -> str:
    """Which of the paper's models a model is set beside: itself, none where the paper has no numbers of it, or one."""
    known = {key[0] if isinstance(key, tuple) else key for key in table}
    return model if model in known else "" if model in HUB else otherwise


def of_base(model: str) -> bool:
    """Whether numbers that the paper has of BERT base alone stand beside a model: not beside its other models."""
    return model == "bert-base" or model not in HUB


def seeds(number: int) -> str:
    return f"{number} seed{'s' if number != 1 else ''}"


def erratum(where: str) -> str:
    """The error in a printed table, as a sentence."""
    return f"Erratum of {where}: {paper.ERRATA[where]}."
